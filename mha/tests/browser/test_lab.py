"""The lessons in JupyterLab, as a reader sees and moves them."""

from __future__ import annotations

import base64
import io
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import nbformat
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mha import style
from mha.examples import recorded_heads
from mha.tests.browser.reader import (
    choose,
    eventually,
    open_notebook,
    press,
    run_all,
    run_cell,
    save,
    wait_for_kernel,
    write_scratch,
)

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from mha.tests.browser.conftest import Address, Serve

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[3]
START, SPLIT = "notebooks/00_start_here.ipynb", "notebooks/03_split_heads.ipynb"


# ---- what a figure shows, and what it must show


class Seen(NamedTuple):
    """What a figure shows: beside its sliders, as text, and as (number, colour) of each box."""

    num_heads: list[str]
    text: list[str]
    boxes: list[tuple[int, str]]
    frames: int = 1


SEE = """figure => {
    const seen = (root, what) => [...root.querySelectorAll(what)].filter(e => e.checkVisibility())
    const frames = seen(figure, 'svg')
    return {
        num_heads: seen(figure, '.widget-readout').map(e => e.textContent),
        frames: frames.length,
        text: frames.flatMap(svg => seen(svg, ':scope > text')).map(e => e.textContent),
        boxes: frames.flatMap(svg => seen(svg, 'g > rect')).map(
            rect => [Number(rect.parentElement.textContent), getComputedStyle(rect).fill]),
    }
}"""
WITH_NUMBERS = re.compile(
    r"(qh|attn_weights|out_h|out|head \d+|(strides )?\(.*\)|\[\d.*)$"
    r"|shape \(.*?\)   strides \(.*?\)"
)


def see(figure: Locator) -> Seen:
    """What a figure shows now, without the names of tokens and axes."""
    found = figure.evaluate(SEE)
    text = [match[0] for line in found["text"] if (match := WITH_NUMBERS.match(line))]
    boxes = [(number, fill) for number, fill in found["boxes"]]
    return Seen(found["num_heads"], text, boxes, found["frames"])


def heads_seen(num_heads: int) -> Seen:
    """What the slider of notebook 00 must show: 15 tokens of width 384."""
    head_dim = 384 // num_heads
    out = torch.empty(1, 15, 384)
    tensors = {
        "qh": out.view(1, 15, num_heads, head_dim).transpose(1, 2),
        "attn_weights": torch.empty(1, num_heads, 15, 15),
        "out_h": torch.empty(1, num_heads, 15, head_dim),
        "out": out,
    }
    rows = [
        text
        for name, tensor in tensors.items()
        for text in (name, str(tuple(tensor.shape)), f"strides {tensor.stride()}")
    ]
    return Seen([str(num_heads)], [*rows, *(f"head {head}" for head in range(num_heads))], [])


def split_views(num_heads: int) -> list[Tensor]:
    """The views that `split_heads` makes of 4 tokens of width 6."""
    view = torch.arange(24).view(1, 4, num_heads, 6 // num_heads)
    return [view, view.transpose(1, 2)]


def wrong_split_views(num_heads: int) -> list[Tensor]:
    """The view that the wrong split makes of them."""
    return [torch.arange(24).view(1, num_heads, 4, 6 // num_heads)]


def diagram_seen(
    num_heads: int, views: Sequence[Tensor], pointed: int | None = None, slider: bool = True
) -> Seen:
    """What a diagram must show of 4 tokens of width 6, and of the number pointed at."""
    tensors = [torch.arange(24).view(1, 4, 6), *views]
    at = -1 if pointed is None else pointed
    text = []
    for tensor in tensors:
        text.append(f"shape {tuple(tensor.shape)}   strides {tensor.stride()}")
        for index in (tensor == at).nonzero().tolist():
            steps = zip(index, tensor.stride(), strict=True)
            text.append(f"{index}: {' + '.join(f'{i}*{s}' for i, s in steps)} = {pointed}")
    numbers = [*range(24), *(number for t in tensors for number in t.flatten().tolist())]
    fills = [
        style.INK if number == pointed else style.head_colour(number % 6 // (6 // num_heads))
        for number in numbers
    ]
    return Seen(
        [str(num_heads)] if slider else [], text, list(zip(numbers, map(rgb, fills), strict=True))
    )


def rgb(colour: str) -> str:
    """A colour as the browser writes it."""
    return f"rgb({int(colour[1:3], 16)}, {int(colour[3:5], 16)}, {int(colour[5:], 16)})"


def split_seen(num_heads: int) -> Seen:
    """What the slider over `split_heads` must show."""
    return diagram_seen(num_heads, split_views(num_heads))


def wrong_split_seen(num_heads: int) -> Seen:
    """What the slider over the wrong split must show."""
    return diagram_seen(num_heads, wrong_split_views(num_heads))


class Lesson(NamedTuple):
    """The positions of a slider, and what it must show at each of them."""

    options: list[int]
    seen: Callable[[int], Seen]


HEADS = Lesson([1, 2, 3, 4, 6, 8, 12], heads_seen)
RIGHT, WRONG = (Lesson([1, 2, 3, 6], seen) for seen in (split_seen, wrong_split_seen))
SLIDERS = {  # by the code that shows them
    START: {"explore.HeadExplorer.of(recorded_heads(layer=1, sentence=1": HEADS},
    SPLIT: {"split = explore.SplitExplorer(": RIGHT, "split=wrong_split)": WRONG},
}
VIEW = "application/vnd.jupyter.widget-view+json"


def shows(figure: Locator, expected: Seen) -> None:
    """Wait until a figure shows what it must."""
    figure.wait_for()
    eventually(lambda: see(figure), expected)


MAPS = """svg => [...svg.querySelectorAll('image')]
    .map(image => image.getBoundingClientRect())
    .filter(box => box.height > 20) // the scale below the maps is thinner
    .map(box => [box.x - svg.getBoundingClientRect().x, box.y - svg.getBoundingClientRect().y,
                 box.width, box.height])"""


DISCONNECTED = """figure => [figure, ...figure.querySelectorAll('.jupyter-widgets-disconnected')]
    .map(widget => getComputedStyle(widget, '::before').content)"""


def weights_on_screen(figure: Locator, rows: int, columns: int) -> np.ndarray:
    """The weights of every map, (num_heads, rows, columns), by the colours of the pixels."""
    svg = figure.locator("svg:visible")
    screen = np.array(Image.open(io.BytesIO(svg.screenshot())).convert("RGB"), dtype=int)
    weights = []
    for x, y, width, height in svg.evaluate(MAPS):
        down = (y + (np.arange(rows) + 0.5) * height / rows).astype(int)
        right = (x + (np.arange(columns) + 0.5) * width / columns).astype(int)
        far = abs(screen[np.ix_(down, right)][:, :, None] - np.array(style.HEAT)).sum(-1)
        assert far.min(-1).max() <= 3, "a map has a colour that is not on the scale"
        weights.append(far.argmin(-1) / (style.LEVELS - 1))
    return np.array(weights)


def trained_weights(num_heads: int) -> np.ndarray:
    """The attention weights of the trained model in notebook 00, head by head."""
    heads = recorded_heads(layer=1, sentence=1)
    slices = zip(heads.q[0].chunk(num_heads, -1), heads.k[0].chunk(num_heads, -1), strict=True)
    return np.array([(q @ k.T / q.shape[1] ** 0.5).softmax(-1).numpy() for q, k in slices])


# ---- what a reader of a lesson does


def wait_for_figures(page: Page, path: str) -> None:
    """Wait for as many figures as the lesson has."""
    cells = nbformat.read(ROOT / path, as_version=4).cells
    stored = [o for cell in cells for o in cell.get("outputs", []) if VIEW in o.get("data", {})]
    figures = page.locator(".mha-figure")
    lost = page.get_by_text("Error displaying widget: model not found")
    eventually(lambda: figures.count() + lost.count(), len(stored))
    if lost.count():  # a kernel that takes seconds to answer makes JupyterLab give up for good
        page.reload()
        eventually(figures.count, len(stored))


def figure_of(page: Page, code: str) -> Locator:
    """The figure below the cell with this code."""
    return page.locator(".jp-CodeCell", has_text=code).locator(".mha-figure")


def sliders(page: Page, path: str) -> list[tuple[Locator, Lesson]]:
    """The sliders of a lesson whose every frame is known."""
    wait_for_figures(page, path)
    return [(figure_of(page, code), lesson) for code, lesson in SLIDERS[path].items()]


def walk(figure: Locator, lesson: Lesson) -> None:
    """Move a slider from its last position to its first and back, by arrow keys."""
    *others, last = lesson.options
    press(figure, "End")
    shows(figure, lesson.seen(last))
    for num_heads in others[::-1]:
        press(figure, "ArrowLeft")
        shows(figure, lesson.seen(num_heads))
    for num_heads in lesson.options[1:]:
        press(figure, "ArrowRight")
        shows(figure, lesson.seen(num_heads))


def every_slider_switches(page: Page) -> None:
    """Move each slider of a notebook, known or not, over its whole range."""
    for figure in page.locator(".mha-figure").all():
        for handle in figure.locator(".noUi-handle").all():
            handle.press("Home")
            for _ in range(int(float(handle.get_attribute("aria-valuemax") or 0))):
                switches(figure, handle)


def switches(figure: Locator, handle: Locator) -> None:
    """Move a slider one position to the right, and wait for another frame in place of this one."""
    picture = figure.locator("svg:visible")
    before = picture.inner_html()
    handle.press("ArrowRight")
    eventually(lambda: picture.inner_html() != before, True)


def place_of(figure: Locator, place: int, lesson: Lesson) -> tuple[float, float]:
    """Where on the screen a position of a slider lies."""
    box = figure.locator(".noUi-base").bounding_box()
    assert box
    along = place / (len(lesson.options) - 1)
    return box["x"] + box["width"] * along, box["y"] + box["height"] / 2


def drag(page: Page, figure: Locator, lesson: Lesson) -> None:
    """Drag the handle to the first position, over all of them, and past the last."""
    last = len(lesson.options) - 1
    figure.locator(".noUi-handle").hover()
    page.mouse.down()
    for place in (0, *range(last + 1)):
        page.mouse.move(*place_of(figure, place, lesson), steps=3)
        shows(figure, lesson.seen(lesson.options[place]))
    right, down = place_of(figure, last, lesson)
    page.mouse.move(right + 300, down)
    page.mouse.up()
    shows(figure, lesson.seen(lesson.options[last]))


# The frame on screen 100 ms after the mouse button is released.
AFTER_RELEASE = """figure => new Promise(resolve => window.addEventListener('mouseup', () => {
    setTimeout(() => resolve([...figure.querySelectorAll('svg > text')]
        .filter(text => text.checkVisibility()).map(text => text.textContent)), 100)
}, {capture: true, once: true}))"""


# ---- the tests


def test_make_lab_opens_a_slider_that_switches_the_heads_before_anything_is_run(
    lab: Address, page: Page
) -> None:
    page.goto(lab(""))
    ((figure, lesson),) = sliders(page, START)
    assert f"/lab/tree/{START}" in page.url
    wait_for_kernel(page)
    choose(page, "Kernel", "Shut Down Kernel")
    page.locator(".mha-figure.jupyter-widgets-disconnected").first.wait_for()
    assert set(figure.evaluate(DISCONNECTED)) == {"none"}, "a mark says that it is disconnected"
    for num_heads in lesson.options[::-1]:
        shows(figure, heads_seen(num_heads))
        weights = weights_on_screen(figure, 15, 15)
        assert weights.shape == (num_heads, 15, 15)
        assert abs(weights - trained_weights(num_heads)).max() < 1 / (style.LEVELS - 1)
        press(figure, "ArrowLeft")
    walk(figure, lesson)


def test_an_unsigned_notebook_shows_stills_and_no_slider(
    lab: Address, lab_folder: Path, page: Page
) -> None:
    nb = nbformat.read(lab_folder / SPLIT, as_version=4)
    nb.cells[0].source += "\n\nEdited by someone else."
    nbformat.write(nb, lab_folder / "unsigned.ipynb")
    stored = [
        Image.open(io.BytesIO(base64.b64decode(output.data["image/png"])))
        for cell in nb.cells
        for output in cell.get("outputs", [])
        if VIEW in output.get("data", {})
    ]
    assert stored
    open_notebook(page, lab, "unsigned.ipynb")
    stills = page.locator(".jp-OutputArea-output img:visible")
    sizes = "stills => stills.map(still => [still.naturalWidth, still.naturalHeight])"
    eventually(lambda: stills.evaluate_all(sizes), [[*still.size] for still in stored])
    assert page.locator(".mha-figure, .noUi-handle").count() == 0


def test_keys_and_mouse_move_every_slider_after_run_all_and_keys_after_save_and_a_new_server(
    serve: Serve, tmp_path: Path, page: Page
) -> None:
    # Not in the folder that `make lab` signs: JupyterLab itself has to sign what it saves.
    copies = {path: Path(shutil.copy(ROOT / path, tmp_path)) for path in (START, SPLIT)}
    with serve(tmp_path) as lab:
        for path, copy in copies.items():
            open_notebook(page, lab, copy.name)
            run_all(page)
            for figure, lesson in sliders(page, path):
                walk(figure, lesson)
                drag(page, figure, lesson)
            every_slider_switches(page)
            save(page, copy)
        page.goto("about:blank")  # or it would miss its server
    with serve(tmp_path) as lab:
        for path, copy in copies.items():
            open_notebook(page, lab, copy.name)
            for figure, lesson in sliders(page, path):
                shows(figure, lesson.seen(lesson.options[-1]))
                walk(figure, lesson)
            every_slider_switches(page)
        page.goto("about:blank")


def test_a_fast_drag_ends_on_the_last_value_within_100_ms_of_the_release(
    lab: Address, page: Page
) -> None:
    page.goto(lab(""))
    ((figure, lesson),) = sliders(page, START)
    press(figure, "Home")
    shows(figure, heads_seen(1))
    for place in (6, 0):
        figure.evaluate(f"figure => {{ figure.shown = ({AFTER_RELEASE})(figure) }}")
        figure.locator(".noUi-handle").hover()
        page.mouse.down()
        page.mouse.move(*place_of(figure, place, lesson), steps=4)
        page.mouse.up()
        after = figure.evaluate("figure => figure.shown")
        num_heads = lesson.options[place]
        assert f"(1, {num_heads}, 15, {384 // num_heads})" in after
        shows(figure, heads_seen(num_heads))


def test_two_notebooks_open_at_once_move_their_own_sliders(lab: Address, page: Page) -> None:
    page.goto(lab(f"lab/tree/{START}?reset"))
    ((heads, _),) = sliders(page, START)
    page.get_by_role("link", name="03 Split heads").first.click()
    panels = page.locator(".jp-NotebookPanel")
    eventually(panels.count, 2)
    split = figure_of(page, "split = explore.SplitExplorer(")
    shows(split, split_seen(3))
    press(split, "End")
    shows(split, split_seen(6))
    press(split, "Home")
    shows(split, split_seen(1))
    page.get_by_role("tab", name=Path(START).name).click()
    shows(heads, heads_seen(12))
    press(heads, "ArrowLeft")
    shows(heads, heads_seen(8))
    page.get_by_role("tab", name=Path(SPLIT).name).click()
    shows(split, split_seen(1))


def test_pointing_at_a_number_lights_it_everywhere_and_explains_its_place(
    lab: Address, page: Page
) -> None:
    open_notebook(page, lab, SPLIT)
    figures = [figure for figure, _ in sliders(page, SPLIT)]
    diagram = figure_of(page, "explore.StrideDiagram(")
    shows(diagram, diagram_seen(3, split_views(3), slider=False))
    for place, number in enumerate((13, 4, 23, 9)):  # in the storage, x, the view, the transpose
        diagram.locator("svg g", has_text=re.compile(f"^{number}$")).nth(place).hover()
        shows(diagram, diagram_seen(3, split_views(3), number, slider=False))
    for figure, views in zip(figures, (split_views, wrong_split_views), strict=True):
        page.mouse.move(0, 0)
        press(figure, "ArrowLeft")
        shows(figure, diagram_seen(2, views(2)))
        figure.locator("svg:visible g", has_text=re.compile("^16$")).last.hover()
        shows(figure, diagram_seen(2, views(2), 16))
        shows(diagram, diagram_seen(3, split_views(3), slider=False))


def test_a_later_cell_moves_the_slider_and_an_error_leaves_it_alone(
    lab: Address, lab_folder: Path, page: Page
) -> None:
    write_scratch(
        lab_folder / "scratch.ipynb",
        "from mha import explore\nsplit = explore.SplitExplorer()\nsplit",
        "",
        "split.num_heads = 5",
        "print('the slider is at', split.num_heads)",
    )
    open_notebook(page, lab, "scratch.ipynb")
    figure = run_cell(page, 0, 1).locator(".mha-figure")
    shows(figure, split_seen(3))
    page.locator(".jp-CodeCell").nth(1).locator(".cm-content").click()
    page.keyboard.type("split.num_heads = 6")
    run_cell(page, 1, 2)
    shows(figure, split_seen(6))
    output = run_cell(page, 2, 3).locator(".jp-OutputArea-output")
    output.get_by_text("ValueError: num_heads must be one of [1, 2, 3, 6], but is 5.").wait_for()
    shows(figure, split_seen(6))
    press(figure, "Home")
    shows(figure, split_seen(1))
    run_cell(page, 3, 4).get_by_text("the slider is at 1").wait_for()


def test_an_error_in_a_split_of_ones_own_shows_at_its_position_alone(
    lab: Address, lab_folder: Path, page: Page
) -> None:
    write_scratch(
        lab_folder / "broken.ipynb",
        "from mha import explore, split_heads\n\n\n"
        "def broken(x, num_heads):\n"
        "    if num_heads == 2:\n"
        "        raise RuntimeError('no halves, <b>please</b>')\n"
        "    return split_heads(x, num_heads)\n\n\n"
        "explore.SplitExplorer(split=broken)",
    )
    open_notebook(page, lab, "broken.ipynb")
    figure = run_cell(page, 0, 1).locator(".mha-figure")
    shows(figure, split_seen(3))
    press(figure, "ArrowLeft")
    shown = figure.locator("svg:visible > text")
    message = "num_heads = 2: RuntimeError: no halves, <b>please</b>"
    eventually(shown.all_text_contents, [message])
    assert see(figure).num_heads == ["2"]
    press(figure, "ArrowLeft")
    shows(figure, split_seen(1))
    press(figure, "End")
    shows(figure, split_seen(6))


def test_old_and_new_sliders_move_when_cells_run_again_in_another_order(
    lab: Address, lab_folder: Path, page: Page
) -> None:
    write_scratch(
        lab_folder / "again.ipynb",
        "from mha import explore\nsplit = explore.SplitExplorer()\nsplit",
        "split",
    )
    open_notebook(page, lab, "again.ipynb")
    run_cell(page, 0, 1)
    old = run_cell(page, 1, 2).locator(".mha-figure")
    new = run_cell(page, 0, 3).locator(".mha-figure")
    shows(new, split_seen(3))
    press(new, "End")
    shows(new, split_seen(6))
    shows(old, split_seen(3))
    for place in (3, 0):  # two clicks in a row, on the track
        page.mouse.click(*place_of(old, place, RIGHT))
    shows(old, split_seen(1))
    shows(new, split_seen(6))
    second = run_cell(page, 1, 4).locator(".mha-figure")
    shows(second, split_seen(6))
    press(second, "ArrowLeft")
    shows(second, split_seen(3))
    shows(new, split_seen(3))
