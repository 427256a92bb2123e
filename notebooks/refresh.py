"""Keep the notebooks in order: `python notebooks/refresh.py check`, or `write` to run them again.

`check` needs no kernel: it reads the parts, links, metadata, outputs and sizes of each notebook.
`write` makes the navigation, runs every notebook in a fresh kernel, and stores its outputs and the
state of its sliders. Running it twice changes no byte.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

HERE = Path(__file__).parent
STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
IGNORE = "nbval-ignore-output"
MAY_IGNORE = {"08", "09"}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    # As ipykernel writes it, without the version of Python.
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
CELLS, WORDS, KILOBYTES, LINES = 45, 1500, 600, 15
LARGER = {"00": (15, 1500), "05": (65, 2000), "07": (65, 2000), "10": (65, 2000)}
EXERCISES = {"00": (0, 0), "10": (6, 6)}
LABELS = ("**You will do:**", "**You will learn:**", "**You need:**")


# ---- reading


def notebooks(folder: Path = HERE) -> list[Path]:
    """Every lesson, in order."""
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def cells(nb: NotebookNode, kind: str) -> Iterator[tuple[int, NotebookNode]]:
    """The code or markdown cells with their number, counted from 0 as nbval does."""
    return ((i, cell) for i, cell in enumerate(nb.cells) if cell.cell_type == kind)


def title(nb: NotebookNode) -> str:
    """The text of the first heading."""
    return str(nb.cells[0].source.partition("\n")[0].removeprefix("# "))


def words(nb: NotebookNode) -> int:
    """How many words of prose there are; links count by their text, navigation does not count."""
    prose = " ".join(c.source for _, c in cells(nb, "markdown") if "navigation" not in c.metadata)
    return len(re.sub(r"\]\([^)]*\)", "]", prose).split())


def anchors(nb: NotebookNode) -> set[str]:
    """What a link to a heading of this notebook may say after `#`, as JupyterLab spells it."""
    text = "\n".join(c.source for _, c in cells(nb, "markdown"))
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {heading.strip().replace(" ", "-") for heading in headings}


# ---- check


def problems(path: Path) -> list[str]:
    """All that is wrong with one notebook, a sentence each."""
    nb = nbformat.read(path, as_version=4)
    number = path.name[:2]
    found = [
        *_parts(nb, path),
        *_code(nb, number),
        *_prose(nb),
        *_links(nb, path),
        *_widgets(nb),
    ]
    most_cells, most_words = LARGER.get(number, (CELLS, WORDS))
    if len(nb.cells) > most_cells:
        found.append(f"It has {len(nb.cells)} cells; at most {most_cells}.")
    if words(nb) > most_words:
        found.append(f"It has {words(nb)} words; at most {most_words}.")
    if path.stat().st_size > KILOBYTES * 1000:
        found.append(f"It has {path.stat().st_size // 1000} KB; at most {KILOBYTES}.")
    return [f"{path.name}: {text}" for text in found]


def _parts(nb: NotebookNode, path: Path) -> Iterator[str]:
    sources = [cell.source for cell in nb.cells]
    if {key: value for key, value in nb.metadata.items() if key != "widgets"} != METADATA:
        yield "Its metadata is not the shared one; run `make notebooks`."
    if [cell.get("id") for cell in nb.cells] != [_id(i) for i in range(len(nb.cells))]:
        yield "Cell ids are not in order; run `make notebooks`."
    if not re.match(r"# [A-Z][^A-Z]*(\n|$)", re.sub(r"\b[A-Z]{2,}\b", "", sources[0])):
        yield "Cell 0 must begin with a title in sentence case: `# Split heads`."
    if not all(label in sources[0] for label in LABELS):
        yield f"Cell 0 must say {', '.join(LABELS)}."
    slides = [cell.metadata.get("slideshow", {}).get("slide_type") for cell in nb.cells]
    if slides != [slide_type(cell, i) for i, cell in enumerate(nb.cells)]:
        yield "The slides are not those that the headings make; run `make notebooks`."
    links = navigation(path)
    if len(sources) < 3 or sources[1] != links or sources[-1] != links:
        yield "Cell 1 and the last one must be the navigation; run `make notebooks`."
    first = nbformat.read(notebooks(path.parent)[0], as_version=4)
    setup = next((cell.source for _, cell in cells(first, "code")), "")
    if sources[2:3] != [setup] or "%matplotlib inline" not in setup:
        yield "Cell 2 must be the set-up cell of notebook 00, letter for letter."
    recap = re.search(r"^## Recap\n+((?:- .*\n?)+)", "\n\n".join(sources), re.M)
    asked = sum("check." in c.source and "(my_" in c.source for _, c in cells(nb, "code"))
    least, most = EXERCISES.get(path.name[:2], (2, 4))
    if not least <= asked <= most:
        yield f"There are {asked} exercises, not {least} to {most}."
    if not recap or not 3 <= recap[1].count("\n- ") + 1 <= 5:
        yield "There must be a `## Recap` of 3 to 5 points."


def _code(nb: NotebookNode, number: str) -> Iterator[str]:
    counts = [cell.execution_count for _, cell in cells(nb, "code")]
    if counts != list(range(1, len(counts) + 1)):
        yield f"Execution counts are {counts}, not 1 to {len(counts)}; run `make notebooks`."
    for i, cell in cells(nb, "code"):
        if len(cell.source.splitlines()) > LINES:
            yield f"Cell {i} has more than {LINES} lines; long code belongs in mha."
        tags = set(cell.metadata.get("tags", []))
        if any("nbval" in tag or tag == "raises-exception" for tag in tags - {IGNORE}):
            yield f"Cell {i} has a tag that hides outputs from nbval: {sorted(tags)}."
        if (IGNORE in tags and number not in MAY_IGNORE) or "NBVAL_" in cell.source:
            yield f"Cell {i} ignores its output; only timings and training in 08 and 09 may."
        for output in cell.outputs:
            text = json.dumps(output.get("data", output))
            if output.output_type == "error" or output.get("name") == "stderr":
                yield f"Cell {i} stores an error or a warning."
            if re.search(r"\bat 0x[0-9a-f]{6,}", text):
                yield f"Cell {i} stores an address, which differs in each run."


def _prose(nb: NotebookNode) -> Iterator[str]:
    for i, cell in cells(nb, "markdown"):
        text = re.sub(r"```.*?```|`[^`]*`", "", cell.source, flags=re.S)
        for what, pattern in (
            ("LaTeX", r"\$[^$\n]+\$"),
            ("an exclamation mark", r"(?<!<)!(?!\[)"),
            ("an emoji", r"[\U0001F300-\U0001FAFF\u2600-\u27BF]"),
            ("<style>, which JupyterLab strips", r"<style"),
            ("an open <details>", r"<details[^>]*\bopen\b"),
        ):
            if re.search(pattern, text):
                yield f"Cell {i} has {what}."
        if text.count("<details") != text.count("</details>"):
            yield f"Cell {i} does not close its <details>."


def _links(nb: NotebookNode, path: Path) -> Iterator[str]:
    for i, cell in cells(nb, "markdown"):
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", cell.source):
            name, _, anchor = target.partition("#")
            file = path.parent / name if name else path
            if not file.exists():
                yield f"Cell {i} links to {target}, which does not exist."
            elif anchor and file.suffix == ".ipynb":
                other = nbformat.read(file, as_version=4)
                if anchor not in anchors(other):
                    yield f"Cell {i} links to {target}, which has no such heading."


def _widgets(nb: NotebookNode) -> Iterator[str]:
    state = nb.metadata.get("widgets", {}).get(STATE, {}).get("state")
    roots = []
    for i, cell in cells(nb, "code"):
        for data in (output.get("data", {}) for output in cell.outputs):
            if VIEW in data:
                roots.append(data[VIEW]["model_id"])
                if not {"image/png", "text/plain"} <= set(data) or "text/html" in data:
                    yield f"Cell {i} has a slider without a still and its numbers, or with HTML."
            if "image/png" in data and re.match(r"<.*>$", str(data.get("text/plain", "<>"))):
                yield f"Cell {i} has a picture that says nothing in words."
    if "widgets" in nb.metadata and state is None:
        yield "metadata.widgets lacks its state level; GitHub would not show the notebook."
    if not set(roots) <= set(state or {}) or set(reachable(state or {}, roots)) != set(state or {}):
        yield "The stored sliders are not those that the outputs show; run `make notebooks`."


# ---- write


def navigation(path: Path) -> str:
    """The line of links at the top and the bottom of a notebook."""
    files = notebooks(path.parent)
    place = files.index(path)

    def link(word: str, file: Path) -> str:
        name = title(nbformat.read(file, as_version=4))
        return f"[{word}: {file.name[:2]} {name}]({file.name})"

    links = [f"[Contents]({files[0].name}#Follow-the-map)"]
    if place > 0:
        links.insert(0, link("Previous", files[place - 1]))
    if place + 1 < len(files):
        links.append(link("Next", files[place + 1]))
    return " | ".join(links)


def _id(place: int) -> str:
    return f"cell-{place:02}"


def navigated(nb: NotebookNode, path: Path) -> NotebookNode:
    """The notebook with its navigation below the title and at the end."""
    body = [cell for cell in nb.cells if "navigation" not in cell.metadata]
    links = [nbformat.v4.new_markdown_cell(navigation(path), metadata={"navigation": True})] * 2
    nb.cells = [body[0], links[0], *body[1:], nbformat.from_dict(dict(links[1]))]
    for place, cell in enumerate(nb.cells):
        cell.metadata["slideshow"] = {"slide_type": slide_type(cell, place)}
    return nb


def slide_type(cell: NotebookNode, place: int) -> str:
    """A section begins a slide, and its other cells come one by one; links and set-up stay away."""
    if "navigation" in cell.metadata or place == 2:
        return "skip"
    heading = cell.cell_type == "markdown" and re.search(r"^##? ", cell.source, re.M)
    return "slide" if heading else "fragment"


def executed(nb: NotebookNode, folder: Path) -> NotebookNode:
    """The notebook with the outputs of a fresh kernel; an error in a cell is raised."""
    nb = nbformat.from_dict(json.loads(json.dumps(nb)))
    nb.metadata = nbformat.from_dict(METADATA)
    client = NotebookClient(
        nb,
        kernel_name="python3",
        timeout=60,
        store_widget_state=True,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return nb


def normalised(nb: NotebookNode) -> NotebookNode:
    """The notebook without what differs from run to run: random ids, split streams, versions."""
    widgets = nb.metadata.get("widgets")
    nb.metadata = nbformat.from_dict(METADATA)
    for i, cell in enumerate(nb.cells):
        cell.id = _id(i)
        cell.metadata = nbformat.from_dict(
            {k: v for k, v in cell.metadata.items() if k in ("tags", "navigation", "slideshow")}
        )
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    if not widgets or not widgets[STATE]["state"]:
        return nb
    state = widgets[STATE]["state"]
    roots = [
        output.data[VIEW]["model_id"]
        for _, cell in cells(nb, "code")
        for output in cell.outputs
        if VIEW in output.get("data", {})
    ]
    names = {old: f"{new:032x}" for new, old in enumerate(reachable(state, roots))}
    nb.metadata.widgets = {
        **widgets,
        STATE: {**widgets[STATE], "state": {n: state[n] for n in names}},
    }
    text = re.sub(r"[0-9a-f]{32}", lambda m: names.get(m[0], m[0]), json.dumps(nb))
    clean: NotebookNode = nbformat.from_dict(json.loads(text))
    return clean


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs with neighbouring pieces of one stream put together, by stream."""
    result: list[NotebookNode] = []
    for output in outputs:
        last = result[-1] if result else None
        if last and output.output_type == "stream" and last.get("name") == output.name:
            last.text += output.text
        else:
            result.append(output)
    return result


def reachable(state: dict[str, Any], roots: list[str]) -> list[str]:
    """The ids of the models that outputs show, in the order in which a walk meets them.

    A link between two widgets is reached from the widget that it starts at.
    """
    links: dict[str, list[str]] = {}
    for name, model in state.items():
        if model["model_name"] in ("LinkModel", "DirectionalLinkModel"):
            source = model["state"]["source"][0].removeprefix("IPY_MODEL_")
            links.setdefault(source, []).append(name)
    order: dict[str, None] = {}
    todo = [name for name in roots[::-1] if name in state]
    while todo:
        name = todo.pop()
        if name not in order:
            order[name] = None
            text = json.dumps(state[name]["state"], sort_keys=True)
            found = [*re.findall(r"IPY_MODEL_([0-9a-f]{32})", text), *links.get(name, [])]
            todo += [other for other in found[::-1] if other in state]
    return list(order)


def keep_ignored(nb: NotebookNode, old: NotebookNode) -> None:
    """Give cells whose output differs in each run their stored output, if no code has changed."""
    new_code, old_code = ([c for _, c in cells(n, "code")] for n in (nb, old))
    if [c.source for c in new_code] == [c.source for c in old_code]:
        for new, stored in zip(new_code, old_code, strict=True):
            if IGNORE in new.metadata.get("tags", []) and stored.outputs:
                new.outputs = stored.outputs
        if "widgets" in nb.metadata and "widgets" in old.metadata:
            nb.metadata.widgets[STATE]["state"].update(old.metadata.widgets[STATE]["state"])


def write(path: Path) -> str:
    """Refresh one notebook; where a cell raises, its file stays as it is. Returns what happened."""
    old = nbformat.read(path, as_version=4)
    before = path.read_text("utf-8")
    nb = navigated(nbformat.reads(before, as_version=4), path)
    try:
        nb = executed(nb, path.parent)
    except (CellExecutionError, CellTimeoutError) as error:
        return f"{path.name}: not written, a cell raises.\n{error}"
    keep_ignored(nb, old)
    text = nbformat.writes(normalised(nb), version=4) + "\n"
    if text == before:
        return f"{path.name}: unchanged."
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)
    return f"{path.name}: written."


def main(argv: list[str]) -> int:
    """Run `check` or `write` on the named notebooks, or on all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["check", "write"])
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(argv)
    files = [HERE / path.name for path in options.files] or notebooks()
    if options.command == "write":
        timed = [path for path in files if path.name.startswith("09")]  # wants an idle machine
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(write, (path for path in files if path not in timed)))
        results += map(write, timed)
        print("\n".join(results))
        return int(any("not written" in result for result in results))
    print(f"{'notebook':32} cells words   KB")
    for path in files:
        nb = nbformat.read(path, as_version=4)
        size = path.stat().st_size // 1000
        print(f"{path.name:32} {len(nb.cells):5} {words(nb):5} {size:4}")
    found = [problem for path in files for problem in problems(path)]
    print("\n".join(found) or "In order.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
