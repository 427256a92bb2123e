"""What a reader does in JupyterLab, for the tests and for the benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat

from mha.tests.browser.conftest import PATIENCE, Address

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def write_scratch(path: Path, *cells: str) -> None:
    """A notebook of one's own, whose cells have not been run."""
    code = map(nbformat.v4.new_code_cell, cells)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=[*code], metadata={"kernelspec": kernel}), path)


def eventually(read: Callable[[], object], expected: object) -> None:
    """Wait until what is read is what is expected."""
    end = time.monotonic() + PATIENCE
    while (found := read()) != expected and time.monotonic() < end:
        time.sleep(0.02)
    assert found == expected, f"{found!r} is not {expected!r}"


def open_notebook(page: Page, lab: Address, path: str) -> None:
    """Open a notebook alone, and wait for all of its cells."""
    page.goto(lab(f"lab/tree/{path}?reset"))
    stored = page.request.get(lab(f"api/contents/{path}")).json()
    eventually(page.locator(".jp-Notebook .jp-Cell").count, len(stored["content"]["cells"]))


def wait_for_kernel(page: Page) -> None:
    """Wait until the status bar says that the kernel is idle; until then a cell does not run."""
    page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()


def choose(page: Page, menu: str, entry: str) -> None:
    """Choose an entry of a menu."""
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.get_by_role("menuitem", name=entry, exact=True).click()


def prompts(page: Page) -> list[str]:
    """What stands before each code cell: its execution count."""
    found: list[str] = page.locator(".jp-CodeCell .jp-InputArea-prompt").all_text_contents()
    return found


def run_all(page: Page) -> None:
    """Run all cells, with none of the stored outputs left."""
    wait_for_kernel(page)
    choose(page, "Edit", "Clear Outputs of All Cells")
    eventually(lambda: set(prompts(page)), {"[ ]:"})
    choose(page, "Run", "Run All Cells")
    eventually(lambda: prompts(page), [f"[{i + 1}]:" for i in range(len(prompts(page)))])


def run_cell(page: Page, place: int, count: int) -> Locator:
    """Run one code cell, the `count`th that is run, and return it."""
    wait_for_kernel(page)
    cell = page.locator(".jp-CodeCell").nth(place)
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    eventually(cell.locator(".jp-InputArea-prompt").text_content, f"[{count}]:")
    return cell


def save(page: Page, file: Path) -> None:
    """Save the notebook that is open, and wait until its file has changed."""
    before = file.read_bytes()
    page.keyboard.press("Control+s")
    eventually(lambda: file.read_bytes() != before, True)


def press(figure: Locator, key: str) -> None:
    """Press a key on the slider of a figure."""
    figure.locator(".noUi-handle").press(key)
