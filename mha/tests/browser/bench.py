"""How fast a slider is: `python -m mha.tests.browser.bench`, which needs what `.ci/run` installs.

Our num_heads slider and the same one built from `interact` and `plt.subplots`, in one JupyterLab in
Chromium, in turns: layer 1 of the recorded heads, up to 12 heads of 17 tokens with their words.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

from mha.tests.browser.conftest import CHROMIUM, FLAGS, PATIENCE, serving
from mha.tests.browser.reader import open_notebook, run_all, write_scratch

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

OURS = """from mha import explore
from mha.examples import recorded_heads

explore.HeadExplorer.of(recorded_heads(layer=1), num_heads=8)"""

THEIRS = """%matplotlib inline
import matplotlib.pyplot as plt
from ipywidgets import SelectionSlider, interact

from mha import attention_weights, split_heads

heads = recorded_heads(layer=1)


@interact(num_heads=SelectionSlider(options=[1, 2, 3, 4, 6, 8, 12], value=8))
def show(num_heads):
    weights = attention_weights(*(split_heads(x, num_heads) for x in (heads.q, heads.k)))[0]
    figure, axes = plt.subplots(3, 4, figsize=(9, 7))
    for head, place in zip(weights, axes.flat):
        place.imshow(head, vmin=0, vmax=1, cmap="Blues")
        place.set_xticks(range(17), heads.tokens, rotation=90, fontsize=6)
        place.set_yticks(range(17), heads.tokens, fontsize=6)
    plt.show()"""

# Notes when a key goes down or the mouse drags, and when a frame with another picture is shown.
WATCH = """cell => {
    cell.shown = []
    const acts = event => { if (event.key || event.buttons) cell.act = event.timeStamp }
    for (const act of ['keydown', 'mousemove']) window.addEventListener(act, acts, true)
    const next = () => requestAnimationFrame(
        now => cell.shown.push(Math.max(now, performance.now())))
    const changed = changes => {
        for (const change of changes) {
            const images = [...change.addedNodes].filter(node => node.querySelector)
                .flatMap(node => node.matches('img') ? [node] : [...node.querySelectorAll('img')])
            if (images.length) images.forEach(image => image.decode().then(next, next))
            else if (change.type === 'attributes' && change.target.querySelector?.('svg')) next()
        }
    }
    new MutationObserver(changed).observe(cell.querySelector('.jp-Cell-outputWrapper'), {
        childList: true, subtree: true, attributes: true, attributeFilter: ['class', 'style']})
}"""
FIRST = """async cell => {
    while (!cell.shown.length) await new Promise(requestAnimationFrame)
    return cell.shown[0] - cell.act
}"""
LAST = "cell => cell.shown.at(-1) - cell.act"


def press(page: Page, cell: Locator, presses: int) -> list[float]:
    """Milliseconds from each key press to its picture, from 8 heads down to 1 and up again."""
    cell.locator(".noUi-handle").focus()
    times = []
    for i in range(presses):
        cell.evaluate("cell => { cell.shown = [] }")
        page.keyboard.press("ArrowLeft" if i // 5 % 2 == 0 else "ArrowRight")
        times.append(float(cell.evaluate(FIRST)))
        page.wait_for_timeout(30)
    return times


def drag(page: Page, cell: Locator) -> list[float]:
    """Milliseconds from the last step of a fast drag, to 1 head or back to 8, to its picture."""
    track = cell.locator(".noUi-base").bounding_box()
    assert track
    times = []
    for place in (0, 5):
        cell.evaluate("cell => { cell.shown = [] }")
        cell.locator(".noUi-handle").hover()
        page.mouse.down()
        right = track["x"] + track["width"] * place / 6
        page.mouse.move(right, track["y"] + track["height"] / 2, steps=6)
        page.mouse.up()
        page.wait_for_timeout(4000)  # until the slower of the two is certainly done
        times.append(float(cell.evaluate(LAST)))
    return times


def main() -> None:
    """Print the table."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as running:
        folder = Path(name)
        write_scratch(folder / "bench.ipynb", OURS, THEIRS)
        browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1300, "height": 1600})
        page.set_default_timeout(1000 * PATIENCE)
        keys: list[list[float]] = [[], []]
        drags: list[list[float]] = [[], []]
        with serving(folder) as lab:
            open_notebook(page, lab, "bench.ipynb")
            run_all(page)
            cells = page.locator(".jp-CodeCell").all()
            for cell in cells:
                cell.locator(".noUi-handle").wait_for()
            page.wait_for_timeout(4000)
            for cell in cells:
                cell.evaluate(WATCH)
            for _ in range(4):
                for place, cell in enumerate(cells):
                    keys[place] += press(page, cell, 10)
                    drags[place] += drag(page, cell)
            page.goto("about:blank")
        browser.close()
    for act, (ours, theirs) in {"key": keys, "drag": drags}.items():
        for label, times in (("ours", ours), ("interact", theirs)):
            late = quantiles(times, n=20)[-1]
            print(f"{act:5} {label:9} median {median(times):6.1f} ms, 95% within {late:6.1f} ms")
        print(f"{act:5} interact takes {median(theirs) / median(ours):.0f} times as long")


if __name__ == "__main__":
    main()
