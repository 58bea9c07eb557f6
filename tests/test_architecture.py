"""docs/architecture.md names files, classes and functions that exist, and the packages in order."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import tp_transformer
from documents import ROOT
from test_package import LAYERS

PACKAGE = Path(tp_transformer.__file__).parent
TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")
WALKS = re.split(r"^## ", TEXT, flags=re.MULTILINE)[2:]
STEPS = [step for walk in WALKS for step in re.split(r"^(?=\d+\. )", walk, flags=re.MULTILINE)[1:]]


def quoted(text, pattern):
    return re.findall(rf"`({pattern})`", text)


def files_in(text):
    return [name for name in quoted(text, r"[\w/]+\.py") if not name.startswith("tests/")]


def names_in(text):
    """Functions and methods, which are written with parentheses, and classes or constants."""
    called = quoted(text, r"[\w.]+\(\)")
    return [name.removesuffix("()") for name in called] + quoted(text, r"[A-Z]\w*(?:\.\w+)?")


@cache
def defined_in(file):
    """The functions, classes, methods and constants that a file defines at its top level."""
    found = set()
    for node in ast.parse((PACKAGE / file).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (inner for inner in node.body if isinstance(inner, ast.FunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def missing(step):
    """What a step names that none of its files defines."""
    defined = {"encode", "decode"}  # methods that each model implements
    defined = defined.union(*(defined_in(file) for file in files_in(step)))
    return set(names_in(step)) - defined


def test_its_files_and_folders_exist():
    assert len(set(files_in(TEXT))) > 40
    for name in files_in(TEXT):
        assert (PACKAGE / name).is_file(), name
    for name in quoted(TEXT, r"[\w/]+/"):
        assert (PACKAGE / name).is_dir() or (ROOT / name).is_dir(), name


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.split("\n")[0][:40])
def test_each_step_names_a_file_and_what_is_defined_there(step):
    assert files_in(step)
    assert names_in(step)
    assert not missing(step)


def test_there_are_three_walks():
    assert len(WALKS) == 3
    assert len(STEPS) > 30


def test_a_name_that_does_not_exist_is_found():
    assert missing("1. `cli.py`: `main()` calls `nothing()`; `Verb` is elsewhere.") == {
        "nothing",
        "Verb",
    }


def test_it_lists_the_packages_in_the_order_of_their_layers():
    rows = re.findall(r"^\| (`.*?`) \|", TEXT, flags=re.MULTILINE)
    listed = [name.strip("/").removesuffix(".py") for row in rows for name in quoted(row, ".+?")]
    assert listed == [layer for layer in LAYERS if layer != "__main__"]


def test_other_documents_link_to_it():
    for document in ("README.md", "CONTRIBUTING.md"):
        assert "(docs/architecture.md)" in (ROOT / document).read_text("utf-8")
