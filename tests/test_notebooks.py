"""The notebooks: without outputs, with names that exist, executed from top to bottom."""

import ast
import json
import re

import pytest

import tp_transformer as tpt
from documents import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PARAMETERS = {  # for the tests
    "first-steps": "MODEL = None",
    "interpret": 'BUDGET, FOLDER, N_QUESTIONS = "60s", "quotients", 40',
}


def cells_of(file, kind):
    return [
        cell for cell in json.loads(file.read_text("utf-8"))["cells"] if cell["cell_type"] == kind
    ]


def source_of(cell):
    return "".join(cell["source"])


def test_there_are_two():
    assert [file.stem for file in NOTEBOOKS] == list(PARAMETERS)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_it_has_no_outputs_and_names_that_exist(file):
    code = cells_of(file, "code")
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    (parameters,) = (cell for cell in code if "parameters" in cell["metadata"].get("tags", ()))
    replaced = ast.walk(ast.parse(PARAMETERS[file.stem]))
    named = {node.id for node in ast.walk(ast.parse(source_of(parameters)))
             if isinstance(node, ast.Name)}  # fmt: skip
    assert named == {node.id for node in replaced if isinstance(node, ast.Name)}
    for cell in code:
        for path in re.findall(r"\btpt\.([\w.]+)", source_of(cell)):
            found = tpt
            for name in path.split("."):
                found = getattr(found, name)
    for cell in cells_of(file, "markdown"):
        for link in re.findall(r"\]\(([^)]+)\)", source_of(cell)):
            assert (file.parent / link).exists(), link


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the Jupyter libraries
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_it_runs(file, tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # other tests run beside it
    notebook = nbformat.read(file, as_version=4)
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", ()):
            cell.source = PARAMETERS[file.stem]
    context = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=900, resources=context).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = {kind for output in outputs for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= shown
    assert not any(output.output_type == "error" for output in outputs)
