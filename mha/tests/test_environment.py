"""The files that install the series agree with each other, and the top level stays closed."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONDA_NAMES = {"matplotlib-base": "matplotlib", "pytorch": "torch"}
TOP_LEVEL = {
    *("notebooks", "mha", "images"),
    *("environment.yml", "README.md", "pyproject.toml", "requirements.txt", "Makefile", "LICENSE"),
}

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEEL = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
DECLARED = {r.name: r for r in map(Requirement, PYPROJECT["project"]["dependencies"])}


def pins() -> dict[str, Requirement]:
    """The pins of requirements.txt, by name."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and line[0] not in "#-"]
    by_name = {str(canonicalize_name(pin.name)): pin for pin in found}
    assert len(by_name) == len(found), "requirements.txt names a package twice"
    return by_name


def conda() -> dict[str, list[str]]:
    """The lists of environment.yml: channels, dependencies, and what pip installs."""
    lists: dict[str, list[str]] = {}
    for line in (ROOT / "environment.yml").read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"(?:  - )?(\w+):", line):
            lists[heading[1]] = entries = []
        elif entry := re.fullmatch(r" +- (.+)", line):
            entries.append(entry[1])
        else:
            assert re.fullmatch(r"#.*|name: mha", line), f"environment.yml: what is {line!r}?"
    return lists


def test_requirements_pin_every_dependency_inside_its_range() -> None:
    """The versions behind the stored outputs are versions that pyproject allows."""
    pinned = pins()
    assert DECLARED.keys() <= pinned.keys()
    for name, pin in pinned.items():
        (exact,) = pin.specifier
        assert exact.operator == "=="
        assert "+" not in exact.version, f"{pin}: no index but PyTorch's own has local versions"
        assert "*" not in exact.version
        if name in DECLARED:
            assert DECLARED[name].specifier.contains(exact.version), f"{pin}, {DECLARED[name]}"
    assert str(pinned["torch"].specifier) == "==2.13.0"


def test_the_oldest_and_the_newest_versions_come_from_the_same_list() -> None:
    """`make test-oldest` pins what is declared, so each has one lower bound and nothing else."""
    if not shutil.which("make"):
        pytest.skip("there is no make")
    for which, sign in (("oldest", "=="), ("newest", ">=")):
        planned = subprocess.run(
            ["make", "-n", f"test-{which}"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        assert "--clear .venv-" + which in planned
        (extract,) = re.findall(r"sed -n .*pyproject\.toml", planned)
        wanted = subprocess.run(
            ["sh", "-c", extract], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        assert wanted.splitlines() == [str(r).replace(">=", sign) for r in DECLARED.values()]


def test_the_workflow_runs_the_oldest_and_the_newest() -> None:
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert "make test-${{ matrix.versions }}" in workflow
    assert re.findall(r"versions: (oldest|newest)$", workflow, re.M) == ["oldest", "newest"]


def test_requirements_install_the_package_itself() -> None:
    """`pip install -r requirements.txt` is the whole installation."""
    options = re.findall(r"^-.*", (ROOT / "requirements.txt").read_text("utf-8"), re.MULTILINE)
    assert options == ["-e ."]


def test_conda_installs_what_pyproject_declares() -> None:
    """Same packages and same ranges under conda-forge's names; pip adds only this package."""
    lists = conda()
    assert lists.keys() == {"channels", "dependencies", "pip"}
    assert lists["pip"] == ["-e ."]
    found = {r.name: r.specifier for r in map(Requirement, lists["dependencies"])}
    assert str(found.pop("python")) == PYPROJECT["project"]["requires-python"]
    assert str(found.pop("pip")) == ""
    names = {CONDA_NAMES.get(name, name): spec for name, spec in found.items()}
    assert names == {name: r.specifier for name, r in DECLARED.items()}


def test_conda_channels_are_conda_forge_alone() -> None:
    """conda's own pytorch channel ended at 2.5, and mixing channels breaks environments."""
    assert conda()["channels"] == ["conda-forge", "nodefaults"]


def test_installing_sets_up_jupyterlab() -> None:
    """A saved slider reopens alive, which is off by default, and no news are fetched or offered."""
    ((file, target),) = WHEEL["shared-data"].items()
    source = json.loads((ROOT / file).read_text(encoding="utf-8"))
    assert source["@jupyter-widgets/jupyterlab-manager:plugin"] == {"saveState": True}
    assert source["@jupyterlab/apputils-extension:notification"] == {"fetchNews": "false"}
    installed = Path(sys.prefix, target)
    assert installed.is_file(), f"{installed} is missing: run `pip install -e .`"
    assert json.loads(installed.read_text(encoding="utf-8")) == source


def test_the_top_level_is_closed() -> None:
    """What git tracks at the top is on the list, or is a dot-file."""
    try:
        done = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no git repository to ask: {error}")
    tops = {path.split("/")[0] for path in done.stdout.splitlines()}
    assert {top for top in tops if top[0] != "."} <= TOP_LEVEL


# ---- places and time

SETUP = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4).cells[2].source


def test_the_set_up_cell_is_silent_where_the_home_folder_cannot_be_written(tmp_path: Path) -> None:
    """And another warning of matplotlib is still seen."""
    file = tmp_path / "file"
    file.touch()
    other = 'import logging\n\nlogging.getLogger("matplotlib").warning("another warning")'
    nb = new_notebook(cells=[new_code_cell(SETUP), new_code_cell(other)])
    home = {"HOME": str(file / "home"), "MPLCONFIGDIR": str(file / "matplotlib")}
    NotebookClient(nb, kernel_name="python3", timeout=60).execute(env={**os.environ, **home})
    silent, loud = nb.cells
    assert silent.outputs == []
    assert [output.text for output in loud.outputs] == ["another warning\n"]


def test_a_cell_that_takes_too_long_is_one_failure(tmp_path: Path) -> None:
    """The cells that follow are not run, and are no failures, whether or not they would pass."""
    shutil.copy(ROOT / "notebooks" / "conftest.py", tmp_path)
    cells = [new_code_cell(code) for code in ("1", "import time\n\ntime.sleep(60)", "2", "1 / 0")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "slow.ipynb")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-rs"),
            *("--rootdir", tmp_path, "--nbval-lax", "--nbval-cell-timeout=2", "--numprocesses=0"),
            tmp_path / "slow.ipynb",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"= 1 failed, 1 passed, 2 skipped in ", done.stdout), done.stdout
    assert "Timeout of 2 seconds exceeded executing cell" in done.stdout
    assert "an earlier cell of this notebook took too long" in done.stdout
