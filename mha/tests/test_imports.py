"""Who may import whom, what `import mha` costs and offers, and how large the package may be."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mha

PACKAGE = Path(mha.__file__).parent
MODULES = sorted([*PACKAGE.glob("*.py"), *PACKAGE.glob("check/*.py")])
LESSONS = [f"check/lesson{number:02}" for number in range(1, 11)]

# Beyond the standard library. A module may import those that stand above it, so there is no cycle.
MAY_IMPORT = {
    "style": {"matplotlib"},
    "layout": set[str](),
    "attention": {"torch"},
    "dependency": {"torch"},
    "steps": set[str](),
    "axes": {"mha.layout", "mha.steps"},
    "calls": {"torch", "mha.layout"},
    "moves": {"torch"},
    "trace": {"torch", "mha.axes", "mha.calls", "mha.moves", "mha.steps"},
    "picture": {"matplotlib", "numpy", "PIL", "mha.style"},
    "diagrams": {"torch", "mha.layout", "mha.picture", "mha.steps", "mha.style"},
    "heatmaps": {"numpy", "mha.picture", "mha.style"},
    "examples": {"torch", "safetensors"},
    "cost": {"torch", "mha.attention"},
    "check/hints": set[str](),
    "check/mistakes": {"torch", "mha.attention"},
    "check/alone": {"numpy", "torch"},
    "check/verdict": {"numpy", "torch", "mha.check.alone", "mha.check.hints"},
    "check/inputs": {"torch"},
    **{
        lesson: {
            "torch", "mha.attention", "mha.check.inputs", "mha.check.mistakes", "mha.check.verdict",
        }
        for lesson in LESSONS
    },
    "check/__init__": {*(f"mha.{lesson.replace('/', '.')}" for lesson in LESSONS),
                       "mha.check.alone", "mha.check.verdict"},
    "explore": {
        "torch", "ipywidgets", "matplotlib", "mha.attention", "mha.diagrams", "mha.examples",
        "mha.heatmaps", "mha.layout", "mha.picture", "mha.steps", "mha.trace",
    },
    "__init__": {"mha.attention", "mha.dependency", "mha.layout", "mha.trace"},
}  # fmt: skip


def imports(source: str) -> Iterator[str]:
    """Every import wherever it stands: our modules as mha.name, others by their first name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert "*" not in {alias.name for alias in node.names}, "no star imports"
            module = node.module or ""
            names = [f"mha.{alias.name}" for alias in node.names] if module == "mha" else [module]
        else:
            continue
        for name in names:
            parts = name.split(".")
            most = 1 if parts[0] != "mha" else 3 if parts[1:2] == ["check"] else 2
            yield ".".join(parts[:most])


def in_a_fresh_python(code: str) -> object:
    """What `code` prints, as JSON, in a process where nothing is imported yet."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_imports_only_what_the_table_allows(path: Path) -> None:
    name = path.relative_to(PACKAGE).with_suffix("").as_posix()
    assert name in MAY_IMPORT, "a new module needs a row in the table"
    found = set(imports(path.read_text(encoding="utf-8")))
    assert found - set(sys.stdlib_module_names) <= MAY_IMPORT[name]


def test_the_table_has_no_cycle() -> None:
    above: set[str] = set()
    for name, allowed in MAY_IMPORT.items():
        assert {module for module in allowed if module.startswith("mha.")} <= above, name
        above.add(f"mha.{name.replace('/', '.')}")


def test_the_import_finder_sees_every_form() -> None:
    source = (
        "import os.path, torch as t\nimport mha.layout\nfrom mha import style\n"
        "def f():\n    from mha.trace import trace\n    import torch.nn.functional\n"
    )
    assert list(imports(source)) == ["os", "torch", "mha.layout", "mha.style", "mha.trace", "torch"]
    for wrong in ("from mha import *", "from . import layout"):
        with pytest.raises(AssertionError):
            list(imports(wrong))


def test_no_star_or_relative_imports_in_the_tests_either() -> None:
    for path in [*PACKAGE.glob("tests/**/*.py"), *PACKAGE.glob("data/*.py")]:
        list(imports(path.read_text(encoding="utf-8")))


def test_importing_mha_loads_torch_and_nothing_else() -> None:
    code = (
        "import json, sys, torch; before = set(sys.modules); import mha;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    loaded = in_a_fresh_python(code)
    assert isinstance(loaded, list)
    others = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names}
    behind_trace = {f"mha.{name}" for name in ("axes", "calls", "moves", "steps")}
    shown = {"mha", "mha.attention", "mha.dependency", "mha.layout", "mha.trace"}
    assert others == shown | behind_trace


def test_tracing_loads_no_compiler() -> None:
    code = """
import json, sys, torch, mha
with mha.trace(seq=5):
    heads = mha.split_heads(torch.rand(2, 5, 12), 3)
    mha.merge_heads(heads @ heads.mT).softmax(-1)
print(json.dumps([name for name in sys.modules if name.startswith("torch._dynamo.")]))"""
    assert in_a_fresh_python(code) == []


def test_importing_mha_loads_no_pictures_or_widgets_through_torch_either() -> None:
    heavy = ["matplotlib", "ipywidgets", "IPython", "PIL", "safetensors", "einops", "torch._dynamo"]
    code = (
        "import json, sys, mha;"
        f"print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    )
    assert in_a_fresh_python(code) == []


def test_layout_needs_no_torch() -> None:
    code = (
        "import importlib.util, json, sys;"
        f"spec = importlib.util.spec_from_file_location('layout', {str(PACKAGE / 'layout.py')!r});"
        "sys.modules['layout'] = layout = importlib.util.module_from_spec(spec);"
        "spec.loader.exec_module(layout);"
        "strides = layout.Layout.contiguous((2, 5, 12)).strides;"
        "print(json.dumps([strides, 'torch' in sys.modules]))"
    )
    assert in_a_fresh_python(code) == [[60, 12, 1], False]


def test_mha_offers_exactly_the_functions_of_attention_trace_and_layout() -> None:
    from_attention = [
        node.name
        for node in ast.parse((PACKAGE / "attention.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    assert sorted(mha.__all__) == sorted([*from_attention, "Layout", "dependency_map", "trace"])
    code = "import json, mha; print(json.dumps([name for name in vars(mha) if name[0] != '_']))"
    offered = in_a_fresh_python(code)
    assert isinstance(offered, list)
    modules = {"attention", "axes", "calls", "dependency", "layout", "moves", "steps"}
    assert set(offered) - modules == set(mha.__all__)
    assert callable(mha.trace), "the function, not the module of the same name"


def test_the_package_is_small() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert lines[PACKAGE / "attention.py"] <= 120
    exercises = sum(n for path, n in lines.items() if path.parent.name == "check")
    assert sum(lines.values()) - exercises <= 3000, lines
    assert exercises <= 2600, lines
    assert not {"utils", "util", "helpers", "common", "misc"} & {path.stem for path in MODULES}


def test_there_is_one_copy_of_the_implementation() -> None:
    functions: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                functions.setdefault(node.name, []).append(path.stem)
    for name in set(mha.__all__) - {"Layout"}:
        assert len(functions[name]) == 1, (name, functions[name])
