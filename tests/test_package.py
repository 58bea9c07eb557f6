"""The house: its layers, its file map, its lazy imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tp_transformer

ROOT = Path(tp_transformer.__file__).parent
FILES = sorted(
    file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*.py") if file.name != "__init__.py"
)


def file_map() -> list[str]:
    """The files that the package's docstring lists, in its order."""
    lines = (tp_transformer.__doc__ or "").splitlines()
    words = [line.split() for line in lines if line.startswith("    ")]
    return [first for first, *rest in words if first.endswith(".py") and rest]


def imported_files(file: str) -> set[str]:
    """The files of the package that a file imports, at its top or inside its functions."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            path = name.replace(".", "/").removeprefix("tp_transformer/") + ".py"
            if name.startswith("tp_transformer") and path in FILES:
                found.add(path)
    return found


def test_the_file_map_is_true():
    assert sorted(file_map()) == FILES


@pytest.mark.parametrize("file", FILES)
def test_each_file_imports_only_from_files_above_it(file):
    order = file_map()
    below = {other for other in imported_files(file) if order.index(other) >= order.index(file)}
    assert not below


def test_packages_within_the_package_import_nothing():
    packages = [file for file in ROOT.rglob("__init__.py") if file.parent != ROOT]
    assert not any(imported_files(file.relative_to(ROOT).as_posix()) for file in packages)


def test_the_layering_test_sees_imports():
    assert "scoring/evaluate.py" in imported_files("demo.py")
    assert "interop/authors.py" in imported_files("verbs/model.py")  # inside a function


@pytest.mark.parametrize("command", ["import tp_transformer", "tpt --help", "tpt --version"])
def test_starting_does_not_import_torch(command):
    code = command
    if command.startswith("tpt"):
        arguments = command.split()[1:]
        code = (
            "from tp_transformer.cli import main\n"
            f"try: main({arguments})\nexcept SystemExit as e: assert not e.code, e.code"
        )
    code += "\nimport sys; assert 'torch' not in sys.modules; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_every_public_name_is_there():
    for name in tp_transformer.__all__:
        assert getattr(tp_transformer, name) is not None
        assert name in dir(tp_transformer)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tp_transformer.nonsense  # noqa: B018


def test_type_checkers_see_the_same_names():
    tree = ast.parse((ROOT / "__init__.py").read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module.removeprefix("tp_transformer.")
        for node in block.body
        for alias in node.names
    }
    assert seen == tp_transformer._HOMES


def test_the_package_is_typed():
    assert (ROOT / "py.typed").is_file()
