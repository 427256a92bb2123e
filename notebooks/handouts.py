"""Write the lessons as web pages that need no kernel: `python notebooks/handouts.py [folder]`.

Each page holds everything that it shows: it opens from a disk, and no request leaves it. The frames
of every slider are in the notebook already, as the state of its widgets; here a few lines of script
switch them.
"""

import re
import sys
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter

HERE = Path(__file__).parent
STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"

STYLE = """
body { max-width: 52rem; margin: auto; padding: 1rem; font: 1rem/1.5 sans-serif; color: #1b1f24;
  background: #fff; }
pre, code { font: 0.875rem/1.4 monospace; }
pre { overflow-x: auto; padding: 0.5rem; margin: 0.5rem 0; }
.highlight pre { background: #f3f4f6; border-left: 3px solid #57606a; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.875rem; }
th, td { border: 1px solid #d0d7de; padding: 0.2rem 0.6rem; text-align: left; }
details { border: 1px solid #d0d7de; border-radius: 4px; padding: 0.3rem 0.8rem; margin: 0.8rem 0; }
summary { cursor: pointer; }
label { display: block; margin: 0.5rem 0; }
input[type=range] { width: 14rem; vertical-align: middle; margin: 0 0.6rem; }
img { max-width: 100%; }
.prompt { display: none; }
a { color: #0550ae; }
"""

# A slider shows in each of its stacks the frame at its own position.
SCRIPT = """
for (const slider of document.querySelectorAll("input[type=range]"))
  slider.addEventListener("input", () => {
    const name = slider.dataset.options.split("|")[slider.value];
    slider.setAttribute("aria-valuetext", name);
    slider.nextElementSibling.textContent = name;
    for (const stack of document.querySelectorAll(`[data-slider="${slider.id}"]`))
      [...stack.children].forEach((frame, i) => { frame.hidden = i != slider.value; });
  });
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}{pygments}</style>
</head>
<body><main>
{body}
</main><script>{script}</script></body>
</html>
"""


def page(nb: NotebookNode) -> str:
    """One notebook as one self-contained page."""
    nb = nbformat.from_dict(nb)
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if VIEW in data:
                output.data = {"text/html": figure(nb.metadata.widgets[STATE]["state"], data)}
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\]\(([\w.]+)\.ipynb", r"](\1.html", cell.source)
            cell.source = cell.source.replace("](README.md)", "](index.html)")
    exporter = HTMLExporter(template_name="basic")
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    body, _ = exporter.from_notebook_node(nb)
    body = re.sub(r'<a class="anchor-link".*?</a>', "", body)
    body = body.replace("<pre", '<pre tabindex="0"').replace("<table", '<table tabindex="0"')
    title = nb.cells[0].source.partition("\n")[0].removeprefix("# ")
    pygments = HtmlFormatter(style="bw").get_style_defs(".highlight")
    return PAGE.format(
        title=escape(title), style=STYLE, pygments=pygments, body=body, script=SCRIPT
    )


def figure(state: dict[str, Any], data: dict[str, Any]) -> str:
    """The widget that an output shows, as plain HTML."""
    stacks = {
        model["state"]["target"][0]: model["state"]["source"][0].removeprefix("IPY_MODEL_")
        for model in state.values()
        if model["model_name"] == "LinkModel"
    }

    def html(name: str) -> str:
        key = name.removeprefix("IPY_MODEL_")
        model, shown = state[key]["model_name"], state[key]["state"]
        if model == "HTMLModel":
            return f"<div>{shown['value']}</div>"
        if model == "SelectionSliderModel":
            return slider(key, shown["description"], shown["_options_labels"], shown["index"])
        children = [html(child) for child in shown["children"]]
        if model == "StackModel":
            frames = (
                f"<div{'' if i == shown['selected_index'] else ' hidden'}>{child}</div>"
                for i, child in enumerate(children)
            )
            return f'<div data-slider="s{stacks[name]}">{"".join(frames)}</div>'
        return "".join(children)

    return html(data[VIEW]["model_id"])


def slider(key: str, name: str, options: list[str], index: int) -> str:
    """A slider, its name and the option where it stands."""
    choices = escape("|".join(options))
    return (
        f'<label>{escape(name)}<input type="range" id="s{key}" min="0" max="{len(options) - 1}" '
        f'value="{index}" data-options="{choices}" aria-valuetext="{escape(options[index])}">'
        f"<output>{escape(options[index])}</output></label>"
    )


def write(folder: Path) -> list[Path]:
    """Write the page of every lesson, and of the index of questions, into `folder`."""
    folder.mkdir(exist_ok=True)
    lessons = sorted(HERE.glob("[0-9][0-9]_*.ipynb"))
    sources = {path.stem: nbformat.read(path, as_version=4) for path in lessons}
    index = nbformat.v4.new_markdown_cell((HERE / "README.md").read_text(encoding="utf-8"))
    sources["index"] = nbformat.v4.new_notebook(cells=[index])
    for name, nb in sources.items():
        (folder / f"{name}.html").write_text(page(nb), encoding="utf-8")
    return [folder / f"{name}.html" for name in sources]


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "handouts"
    for path in write(target):
        print(f"{path.name:32} {path.stat().st_size // 1000:5} KB")
