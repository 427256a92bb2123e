"""JupyterLab as `make lab` starts it, on a copy of the notebooks, and Chromium to drive it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[3]
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
TOKEN = "only-for-these-tests"
PATIENCE = 60  # seconds

Address = Callable[[str], str]
Serve = Callable[[Path], AbstractContextManager[Address]]


@pytest.fixture(scope="module")  # a session would leave its event loop running for other tests
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page; whatever a test does there, the browser's console may show no error."""
    errors: list[str] = []
    page = browser.new_page(viewport={"width": 1300, "height": 1000})
    page.set_default_timeout(1000 * PATIENCE)
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    # A test that looks for a widget notices itself that it is not there, and may reload.
    assert [error for error in errors if "widget model not found" not in error] == []


@pytest.fixture(scope="module")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `lab` runs."""
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def server(browser: Browser, lab_folder: Path) -> Iterator[Address]:
    """One server for most tests; `browser` is asked first, and may skip."""
    with serving(lab_folder) as address:
        yield address


@pytest.fixture
def lab(server: Address) -> Iterator[Address]:
    """The address of a path in JupyterLab, where no kernel runs yet."""
    yield server
    with urlopen(server("api/sessions"), timeout=PATIENCE) as answer:
        sessions = json.load(answer)
    for session in sessions:
        urlopen(Request(server(f"api/sessions/{session['id']}"), method="DELETE"), timeout=PATIENCE)


@pytest.fixture
def serve(browser: Browser) -> Serve:
    """Run a server of one's own in a folder, again in the same one if need be."""
    return serving


@contextmanager
def serving(folder: Path) -> Iterator[Address]:
    """Run `make lab` in a folder, with settings, trust and kernels that are not the user's."""
    if not shutil.which("make"):
        pytest.skip("there is no make")
    prepare(folder)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["make", "lab", f"PY={sys.executable}", f"PORT={port}"],
            cwd=folder,
            env=environment(folder),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def address(path: str) -> str:
        return f"http://localhost:{port}/{path}{'&' if '?' in path else '?'}token={TOKEN}"

    try:
        wait_for(address("api"), process, folder / "log")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # JupyterLab ends its kernels, then itself
        try:
            process.wait(PATIENCE)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


def prepare(folder: Path) -> None:
    """Make a folder look like a clone in which `make` has nothing left to install."""
    for name in ("Makefile", "pyproject.toml", "requirements.txt"):
        shutil.copy2(ROOT / name, folder)
    if not (folder / "notebooks").exists():
        shutil.copytree(
            ROOT / "notebooks",
            folder / "notebooks",
            ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"),
        )
        (folder / ".venv").mkdir()
    (folder / ".venv" / ".installed").write_text(f"{folder}\n")


def environment(folder: Path) -> dict[str, str]:
    """The environment of this process, but with every folder of Jupyter's in `folder`."""
    ours = ("JUPYTER", "IPYTHON", "MAKE", "MFLAGS")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
        "JUPYTER_CONFIG_DIR": str(folder / "jupyter" / "config"),
        "JUPYTER_DATA_DIR": str(folder / "jupyter" / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "jupyter" / "runtime"),
        "IPYTHONDIR": str(folder / "jupyter" / "ipython"),
        "JUPYTER_TOKEN": TOKEN,
        "BROWSER": "true",  # /bin/true, so that no window opens on a desktop
    }


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server answers."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            urlopen(url, timeout=PATIENCE).close()
            return
        except URLError:
            if process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"make lab does not answer:\n{log.read_text()}")
            time.sleep(0.1)
