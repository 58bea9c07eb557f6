"""The layers of the package, its public names, its lazy imports."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tp_transformer

ROOT = Path(tp_transformer.__file__).parent
FILES = sorted(
    file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*.py") if file.name != "__init__.py"
)


LAYERS = (
    *(
        "errors",
        "ranges",
        "yaml_text",
        "settings",
        "registry",
        "runtime",
        "html",
        "table",
        "figures",
    ),
    *("data", "ops", "model", "scoring", "training"),
    *("interpret", "interop", "report", "study", "verbs", "cli", "__main__", "supervised"),
)


def imported_files(file: str, when_run: bool = False) -> set[str]:
    """The files of the package that a file imports, at its top or inside its functions.

    Those that it imports only for type checkers count, too, except `when_run`.
    """
    found = set()
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    if when_run:
        tree.body = [node for node in tree.body if not is_for_type_checkers(node)]
    for node in ast.walk(tree):
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


def is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def layer(file: str) -> int:
    """The number of the layer that a file belongs to."""
    package = file.partition("/")[0].removesuffix(".py")
    # Operators know the modules that they compute; attention and searches use operators.
    return LAYERS.index("model" if package == "ops" else package)


@pytest.mark.parametrize("file", FILES)
def test_each_file_imports_only_from_its_own_and_earlier_layers(file):
    assert not {other for other in imported_files(file) if layer(other) > layer(file)}


def test_no_files_import_each_other_in_a_circle():
    graph = {file: imported_files(file) - {file} for file in FILES}
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def test_every_package_describes_itself():
    for file in ROOT.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(file.read_text("utf-8"))), file


def test_no_two_public_classes_share_a_name():
    files: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(file)
    assert len(files) > 100
    assert not {name: found for name, found in files.items() if len(found) > 1}


def test_packages_within_the_package_import_nothing_but_what_they_must():
    imports = {
        file: imported_files(file, when_run=True)
        for file in (file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*/__init__.py"))
    }
    # The functions of analyses must be bound after the packages of the same names are imported.
    assert imports.pop("interpret/__init__.py") == {"interpret/analyses.py"}
    assert not any(imports.values())


def test_the_layering_test_sees_imports():
    assert "scoring/evaluate.py" in imported_files("study/demo.py")
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


CORE = """
import sys
import tp_transformer as tpt
from tp_transformer.model import bundled

model = tpt.load() if bundled.names() else tpt.build("tp-transformer-tiny")
assert len(model.solve(["Is 7 prime?"])) == 1
assert not bundled.names() or "yaml" not in sys.modules  # only presets are YAML
model.save("model")
tpt.load("model")
tpt.build("transformer-tiny", binding="low-rank", rank=4)
tpt.TPMultiheadAttention(8, 2)
others = {"cyclopts", "matplotlib", "pandas", "pyarrow", "rich", "scipy", "sklearn", "sympy"}
assert not others & set(sys.modules), others & set(sys.modules)
"""


def test_building_loading_and_asking_a_model_imports_only_the_core(tmp_path):
    subprocess.run([sys.executable, "-c", CORE], check=True, cwd=tmp_path)


def test_every_public_name_is_there():
    for name in tp_transformer.__all__:
        assert getattr(tp_transformer, name) is not None
        assert name in dir(tp_transformer)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tp_transformer.nonsense  # noqa: B018


def test_type_checkers_see_the_same_names():
    tree = ast.parse((ROOT / "__init__.py").read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    packages = {name for name, module in seen.items() if module == "tp_transformer"}
    assert packages == set(tp_transformer._PACKAGES)
    homes = {name: f"tp_transformer.{home}" for name, home in tp_transformer._HOMES.items()}
    assert {name: module for name, module in seen.items() if name not in packages} == homes


def test_type_checkers_see_the_same_names_of_data():
    tree = ast.parse((ROOT / "data" / "__init__.py").read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: (node.module.removeprefix("tp_transformer.data."), alias.name)
        for node in block.body
        for alias in node.names
    }
    assert seen == tp_transformer.data._HOMES
    assert sorted(seen) == sorted(tp_transformer.data.__all__)
    for name in seen:
        assert getattr(tp_transformer.data, name) is not None


def test_the_package_is_typed():
    assert (ROOT / "py.typed").is_file()
