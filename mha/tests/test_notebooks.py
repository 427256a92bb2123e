"""Every lesson is in order, and `notebooks/refresh.py` notices where one is not."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbconvert import ScriptExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SPEC = importlib.util.spec_from_file_location("refresh", NOTEBOOKS / "refresh.py")
assert SPEC
assert SPEC.loader
refresh = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(refresh)

HEAD = "\n\n**You will do:** one.\\\n**You will learn:** two.\\\n**You need:** nothing. 1 minute."
RECAP = "## Recap\n\n- One.\n- Two.\n- Three."
ID = "0" * 32
STILL = {refresh.VIEW: {"model_id": ID}, "image/png": "aGk=", "text/plain": "num_heads = 3"}


def lesson(title: str, *codes: str) -> NotebookNode:
    body = [new_code_cell(code) for code in ("%matplotlib inline\nimport math", *codes)]
    cells = [new_markdown_cell(title + HEAD), *body, new_markdown_cell(RECAP)]
    if codes:
        cells += [new_code_cell(f"# check.{name}(my_{name})") for name in ("one", "two")]
    nb: NotebookNode = new_notebook(cells=cells)
    return nb


def series(folder: Path, *codes: str, name: str = "01_toy.ipynb") -> Path:
    """A contents page and a lesson with these cells, both in order but not run. The lesson."""
    start = lesson("# Start here")
    start.cells.insert(2, new_markdown_cell("## Follow the map"))
    for file, nb in (("00_start.ipynb", start), (name, lesson("# Try a toy", *codes))):
        nbformat.write(nb, folder / file)
    for path in refresh.notebooks(folder):
        nb = refresh.normalised(refresh.navigated(nbformat.read(path, as_version=4), path))
        for count, (_, cell) in enumerate(refresh.cells(nb, "code"), 1):
            cell.execution_count = count
        nbformat.write(nb, path)
    return folder / name


def found(path: Path, change: Callable[[NotebookNode], object]) -> list[str]:
    """What `check` says after a change. Cell 3 is code, cell 4 the recap, the last navigation."""
    nb = nbformat.read(path, as_version=4)
    change(nb)
    path.write_text(json.dumps(nb), encoding="utf-8")
    return list(refresh.problems(path))


# ---- the lessons


@pytest.mark.parametrize("path", refresh.notebooks(), ids=lambda path: path.name)
def test_a_lesson_is_in_order(path: Path) -> None:
    assert refresh.problems(path) == []


def test_a_lesson_becomes_a_script_of_python() -> None:
    code, resources = ScriptExporter().from_filename(str(refresh.notebooks()[3]))
    assert resources["output_extension"] == ".py"
    assert "from mha import Layout" in code
    compile(code, "03.py", "exec")


# ---- check


def say(text: str, cell: int = 4) -> Callable[[NotebookNode], None]:
    """Add a paragraph."""
    return lambda nb: nb.cells[cell].update(source=f"{text}\n\n{nb.cells[cell].source}")


def swap(old: str, new: str, cell: int) -> Callable[[NotebookNode], None]:
    return lambda nb: nb.cells[cell].update(source=nb.cells[cell].source.replace(old, new))


def tag(name: str) -> Callable[[NotebookNode], None]:
    return lambda nb: nb.cells[3].metadata.update(tags=[name])


def output(kind: str = "display_data", **content: Any) -> Callable[[NotebookNode], None]:
    return lambda nb: nb.cells[3].update(outputs=[new_output(kind, **content)])


def slider(nb: NotebookNode, state: tuple[str, ...] = (ID,), **data: str) -> None:
    """An output with a slider, and its stored state."""
    output(data={**STILL, **{key.replace("_", "/"): text for key, text in data.items()}})(nb)
    models = {name: {"model_name": "VBoxModel", "state": {}} for name in state}
    nb.metadata.widgets = {refresh.STATE: {"state": models}}


def grow(nb: NotebookNode, cells: int) -> None:
    slide = {"slideshow": {"slide_type": "fragment"}}
    more = [new_markdown_cell("More.", metadata=slide) for _ in range(cells - len(nb.cells))]
    nb.cells[4:4] = more
    for i, cell in enumerate(nb.cells):
        cell.id = f"cell-{i:02}"


RULES: list[tuple[str, Callable[[NotebookNode], object]]] = [
    ("Its metadata is not the shared one", lambda nb: nb.metadata.update(author="me")),
    ("Cell ids are not in order", lambda nb: nb.cells[3].update(id="other")),
    ("Cell 0 must begin with a title in sentence case", swap("a toy", "A Toy", 0)),
    ("Cell 0 must begin with a title in sentence case", swap("# Try", "## Try", 0)),
    ("Cell 0 must say **You will do:**", swap("**You need:**", "You need:", 0)),
    ("Cell 1 and the last one must be the navigation", swap("Contents", "Content", 1)),
    ("Cell 1 and the last one must be the navigation", swap("Contents", "Content", -1)),
    ("Cell 2 must be the set-up cell of notebook 00", swap("math", "math  # mine", 2)),
    ("The slides are not those that the headings make", lambda nb: nb.cells[3].metadata.clear()),
    ("There are 1 exercises, not 2 to 4", swap("check.", "", 5)),
    ("There must be a `## Recap` of 3 to 5 points", swap("\n- Three.", "", 4)),
    ("There must be a `## Recap` of 3 to 5 points", swap("- One.", "- One.\n- 1.\n- 2.\n- 3.", 4)),
    ("There must be a `## Recap` of 3 to 5 points", swap("Recap", "Summary", 4)),
    ("Execution counts are [1, 7, 3, 4]", lambda nb: nb.cells[3].update(execution_count=7)),
    ("Execution counts are [1, None, 3, 4]", lambda nb: nb.cells[3].update(execution_count=None)),
    ("Cell 3 has more than 15 lines", say("x = 1\n" * 13, 3)),
    ("Cell 3 has a tag that hides outputs", tag("nbval-skip")),
    ("Cell 3 has a tag that hides outputs", tag("raises-exception")),
    ("Cell 3 ignores its output", tag(refresh.IGNORE)),
    ("Cell 3 ignores its output", say("# NBVAL_IGNORE_OUTPUT", 3)),
    ("Cell 3 stores an error", output("error", ename="E", evalue="no", traceback=[])),
    ("Cell 3 stores an error or a warning", output("stream", name="stderr", text="hm")),
    ("Cell 3 stores an address", output("stream", name="stdout", text="<X at 0x7f12ab34cd>")),
    ("Cell 3 stores an address", output(data={"text/plain": "<X at 0x7f12ab34cd>"})),
    ("Cell 4 has LaTeX", say("The scale is $\\sqrt{d}$.")),
    ("Cell 4 has an exclamation mark", say("It works!")),
    ("Cell 4 has an emoji", say("Done \N{ROCKET}")),
    ("Cell 4 has an emoji", say("Done \N{CHECK MARK}")),
    ("Cell 4 has <style>", say("<style>b {}</style>")),
    ("Cell 4 has an open <details>", say("<details open><summary>A</summary></details>")),
    ("Cell 4 does not close its <details>", say("<details><summary>A</summary>")),
    ("Cell 4 links to 02_b.ipynb, which does not exist", say("[next](02_b.ipynb)")),
    ("Cell 4 links to #Nowhere, which has no such heading", say("[there](#Nowhere)")),
    ("Cell 4 links to 00_start.ipynb#No, which has no such", say("[map](00_start.ipynb#No)")),
    ("Cell 3 has a slider without a still", lambda nb: slider(nb, text_html="<p>")),
    ("Cell 3 has a picture that says nothing", lambda nb: slider(nb, text_plain="<Figure>")),
    ("metadata.widgets lacks its state level", lambda nb: nb.metadata.update(widgets={})),
    ("The stored sliders are not those", lambda nb: slider(nb, state=(ID, "1" * 32))),
    ("The stored sliders are not those", lambda nb: slider(nb, state=())),
    ("It has 46 cells; at most 45.", lambda nb: grow(nb, 46)),
    ("It has 1525 words; at most 1500.", say("word " * 1500)),
    ("It has 60", output("stream", name="stdout", text="x" * 600_000)),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "change"), RULES)
def test_breaking_one_rule_is_one_problem(
    sentence: str, change: Callable[[NotebookNode], object], tmp_path: Path
) -> None:
    (problem,) = found(series(tmp_path, "1 + 1"), change)
    assert problem.startswith(f"01_toy.ipynb: {sentence}")
    assert problem.endswith(".")


FINE = {
    "code": say("`x!` and `$a$`\n\n```\n# comment\nno! $b$ <style>\n```\n\n<!-- why -->"),
    "links": say("[map](00_start.ipynb#Follow-the-map), [up](#Recap), [web](https://pytorch.org)"),
    "an answer": say("<details><summary>Answer</summary>\n\n3\n\n</details>"),
    "a slider": slider,
    "45 cells": lambda nb: grow(nb, 45),
    "15 lines": say("x = 1\n" * 12, 3),
    "a short address": output("stream", name="stdout", text="at 0x1f"),
}


@pytest.mark.parametrize("name", FINE)
def test_what_is_allowed_is_no_problem(name: str, tmp_path: Path) -> None:
    assert found(series(tmp_path, "1 + 1"), FINE[name]) == []


def test_each_lesson_has_its_own_limits(tmp_path: Path) -> None:
    """Notebook 00 is shorter, 07 longer, and 08 may measure time."""
    path = series(tmp_path, "1 + 1", name="07_toy.ipynb")
    assert found(path, lambda nb: grow(nb, 65)) == []
    assert found(path, lambda nb: grow(nb, 66)) == ["07_toy.ipynb: It has 66 cells; at most 65."]
    (problem,) = found(tmp_path / "00_start.ipynb", lambda nb: grow(nb, 16))
    assert problem == "00_start.ipynb: It has 16 cells; at most 15."
    path = series(tmp_path, "1 + 1", name="08_toy.ipynb")
    assert found(path, tag(refresh.IGNORE)) == []


def test_a_notebook_with_hardly_a_cell_is_a_list_of_problems(tmp_path: Path) -> None:
    problems = found(series(tmp_path), lambda nb: nb.update(cells=nb.cells[:2]))
    assert any("navigation" in problem for problem in problems)
    assert any("set-up cell" in problem for problem in problems)


# ---- reading


def test_words_are_prose_without_navigation_addresses_and_code() -> None:
    nb = new_notebook(
        cells=[
            new_markdown_cell("# One two\n\nthree [four five](https://six.org/seven%20eight)"),
            new_markdown_cell("[Next](nine.ipynb)", metadata={"navigation": True}),
            new_code_cell("ten = 10"),
        ]
    )
    assert refresh.words(nb) == 6  # and the hash
    assert refresh.title(nb) == "One two"


def test_anchors_are_spelt_as_jupyterlab_spells_them() -> None:
    nb = new_notebook(
        cells=[
            new_markdown_cell("# Split heads\n\n## Drag num_heads\ntext"),
            new_markdown_cell("### Why `view`? "),
            new_code_cell("# not this"),
        ]
    )
    assert refresh.anchors(nb) >= {"Split-heads", "Drag-num_heads"}
    assert "not-this" not in refresh.anchors(nb)


def test_a_walk_reaches_what_outputs_show_and_the_links_from_it() -> None:
    a, b, c, link, other = (letter * 32 for letter in "abcde")
    models = {
        other: {"model_name": "VBoxModel", "state": {"children": [f"IPY_MODEL_{a}"]}},
        link: {"model_name": "LinkModel", "state": {"source": [f"IPY_MODEL_{b}", "index"]}},
        c: {"model_name": "LayoutModel", "state": {}},
        b: {"model_name": "SliderModel", "state": {"layout": f"IPY_MODEL_{c}"}},
        a: {"model_name": "VBoxModel", "state": {"children": [f"IPY_MODEL_{b}", f"IPY_MODEL_{a}"]}},
    }
    assert refresh.reachable(models, [a]) == [a, b, c, link]
    assert refresh.reachable(models, ["f" * 32]) == []


# ---- write

SLIDER = """\
import ipywidgets as widgets

slider = widgets.SelectionSlider(options=[1, 2, 3], description="num_heads")
stack = widgets.Stack([widgets.HTML(f"frame {i}") for i in range(3)])
link = widgets.jslink((slider, "index"), (stack, "selected_index"))
hidden = widgets.HTML("nobody shows me")
view = widgets.VBox([slider, stack])._repr_mimebundle_()
display({**view, "image/png": "aGk=", "text/plain": "num_heads = 1"}, raw=True)"""
DICE = """die = widgets.VBox([widgets.HTML(str(random.random()))])
display({**die._repr_mimebundle_(), "image/png": "aGk=", "text/plain": "a die"}, raw=True)"""
CHANCE = "import random\n\nfor _ in range(3):\n    print(random.random(), flush=True)"


def test_writing_twice_changes_no_byte(tmp_path: Path) -> None:
    path = series(tmp_path, SLIDER, CHANCE, DICE, name="08_toy.ipynb")
    nb = nbformat.read(path, as_version=4)
    for cell in nb.cells[4:6]:
        cell.metadata = {"tags": [refresh.IGNORE], "scrolled": True}
    nbformat.write(nb, path)
    assert refresh.write(path) == "08_toy.ipynb: written."
    first = path.read_bytes()
    assert refresh.problems(path) == []
    stored = json.loads(first)
    state = stored["metadata"]["widgets"][refresh.STATE]["state"]
    assert list(state) == [f"{i:032x}" for i in range(len(state))], "no random id is left"
    assert "nobody shows me" not in json.dumps(state)
    names = {model["model_name"] for model in state.values()}
    assert {"VBoxModel", "StackModel", "SelectionSliderModel", "LinkModel"} <= names
    (printed,) = stored["cells"][4]["outputs"]
    assert len("".join(printed["text"]).split()) == 3, "one stream, however it arrived"
    slide = {"slideshow": {"slide_type": "fragment"}}
    assert stored["cells"][4]["metadata"] == {"tags": [refresh.IGNORE], **slide}
    assert refresh.write(path) == "08_toy.ipynb: unchanged."
    assert path.read_bytes() == first, "not even what random printed"


def test_a_cell_that_raises_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    path = series(tmp_path, "print('new')", "1 / 0")
    before = path.read_bytes()
    result = refresh.write(path)
    assert result.startswith("01_toy.ipynb: not written, a cell raises.")
    assert "ZeroDivisionError" in result
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["00_start.ipynb", "01_toy.ipynb"]


def test_ignored_outputs_are_kept_only_while_the_code_is_the_same() -> None:
    def timed(code: str, text: str) -> NotebookNode:
        cell = new_code_cell(code, metadata={"tags": [refresh.IGNORE]})
        cell.outputs = [new_output("stream", name="stdout", text=text)]
        plain = new_code_cell("1", outputs=[new_output("stream", name="stdout", text=text)])
        nb: NotebookNode = new_notebook(cells=[cell, plain])
        return nb

    new = timed("measure()", "2 ms")
    refresh.keep_ignored(new, timed("measure()", "1 ms"))
    assert [cell.outputs[0].text for cell in new.cells] == ["1 ms", "2 ms"]
    changed = timed("measure(5)", "2 ms")
    refresh.keep_ignored(changed, timed("measure()", "1 ms"))
    assert changed.cells[0].outputs[0].text == "2 ms"


def test_navigation_links_both_neighbours_and_the_map(tmp_path: Path) -> None:
    path = series(tmp_path)
    nbformat.write(lesson("# Go on"), tmp_path / "03_on.ipynb")
    assert refresh.navigation(path) == (
        "[Previous: 00 Start here](00_start.ipynb) | [Contents](00_start.ipynb#Follow-the-map)"
        " | [Next: 03 Go on](03_on.ipynb)"
    )
    twice = refresh.navigated(refresh.navigated(nbformat.read(path, as_version=4), path), path)
    places = [i for i, cell in enumerate(twice.cells) if "navigation" in cell.metadata]
    assert places == [1, len(twice.cells) - 1]
