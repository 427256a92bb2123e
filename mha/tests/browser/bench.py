"""How long a slider takes from key press to new picture: `python -m mha.tests.browser.bench`.

Our num_heads slider and the same one built from `interact` and `plt.subplots`, in one JupyterLab in
Chromium, in turns: layer 1 of the recorded heads, up to 12 heads of 17 tokens with their words.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

import nbformat

from mha.tests.browser.conftest import CHROMIUM, FLAGS, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

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

# From the event of a key to the frame in which the output shows something new.
MEASURE = """cell => {
    cell.times = []
    cell.shown = 0
    cell.addEventListener('keydown', event => { cell.pressed = event.timeStamp }, true)
    const output = cell.querySelector('.jp-Cell-outputWrapper')
    const done = () => requestAnimationFrame(now => {
        if (cell.pressed === undefined) return
        cell.times.push(Math.max(now, performance.now()) - cell.pressed)
        cell.pressed = undefined
    })
    const changed = changes => {
        for (const change of changes) {
            const images = [...change.addedNodes].filter(n => n.querySelector)
                .flatMap(n => n.matches('img') ? [n] : [...n.querySelectorAll('img')])
            if (images.length) images.forEach(image => image.decode().then(done, done))
            else if (change.type === 'attributes' && change.target.querySelector?.('svg')) done()
        }
    }
    new MutationObserver(changed).observe(output, {
        childList: true, subtree: true, attributes: true, attributeFilter: ['class', 'style']})
}"""


def press(page: Page, cell: int, rounds: int) -> list[float]:
    """Milliseconds of each of some key presses, which go down to 1 head and up again."""
    place = page.locator(".jp-CodeCell").nth(cell)
    place.locator(".noUi-handle").focus()
    for i in range(rounds):
        before = place.evaluate("cell => cell.times.length")
        page.keyboard.press("ArrowLeft" if i // 5 % 2 == 0 else "ArrowRight")
        place.evaluate(
            "async (cell, before) => { while (cell.times.length == before) "
            "await new Promise(requestAnimationFrame) }",
            before,
        )
        page.wait_for_timeout(30)
    times: list[float] = place.evaluate("cell => cell.times.splice(0)")
    return times


def main() -> None:
    """Print the table."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as running:
        folder = Path(name)
        cells = [nbformat.v4.new_code_cell(code) for code in (OURS, THEIRS)]
        browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        with serving(folder) as address:
            kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
            notebook = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
            nbformat.write(notebook, folder / "bench.ipynb")
            page = browser.new_page(viewport={"width": 1300, "height": 1600})
            page.set_default_timeout(120_000)
            page.goto(address("doc/tree/bench.ipynb?reset"))
            page.locator(".jp-CodeCell").nth(1).wait_for()
            page.get_by_role("menuitem", name="Run", exact=True).click()
            page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
            for cell in (0, 1):
                page.locator(".jp-CodeCell").nth(cell).locator(".noUi-handle").wait_for()
            page.wait_for_timeout(4000)
            page.locator(".jp-CodeCell").evaluate_all(f"cells => cells.forEach({MEASURE})")
            found: list[list[float]] = [[], []]
            for _ in range(4):
                for cell, times in enumerate(found):
                    times += press(page, cell, 10)
        browser.close()
    for label, times in zip(("ours", "interact"), found, strict=True):
        late = quantiles(times, n=20)[-1]
        print(f"{label:9} median {median(times):6.1f} ms, 95th percentile {late:6.1f} ms")
    print(f"ratio of the medians {median(found[1]) / median(found[0]):.0f}")


if __name__ == "__main__":
    main()
