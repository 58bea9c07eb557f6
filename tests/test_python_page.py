"""docs/python.md: it runs as one program, names all that is public, and type checkers accept it."""

import html
import re
import subprocess
import sys

import matplotlib as mpl
import pytest

import tp_transformer as tpt
from documents import ROOT, blocks, commands
from tp_transformer.cli import main

TEXT = (ROOT / "docs" / "python.md").read_text("utf-8")
SMALLER = {"10000": "60", "1000": "20", '"5min"': '"1s"', "num_workers=2": "num_workers=0"}


@pytest.fixture(scope="module")
def program():
    code = "\n".join(blocks("python", TEXT))
    for number, smaller in SMALLER.items():
        assert number in TEXT
        code = code.replace(number, smaller)
    return code


def test_it_runs(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    (command,) = commands(TEXT)
    main([*(SMALLER.get(word, word) for word in command[1:]), "--workers=1"])
    names = {}
    exec(compile(program, "docs/python.md", "exec"), names)  # noqa: S102
    out = capsys.readouterr().out
    assert "did you mean 'tp-transformer'?" in out
    assert len(names["train"]) == 180
    assert next(iter(names["loader"])).source.shape[0] == 64
    assert list(names["own"]) == ["train", "test"]
    assert len(names["dataset"]) == len(names["frame"]) == 180
    assert names["results"].name == "a model without a folder"
    assert list(names["figures"]) == ["interpolate", "extrapolate"]
    assert list(names["without_roles"].splits) == ["interpolate"]
    assert str(names["found"]).splitlines() == names["found"].summary()
    assert f"<p>{html.escape(names['found'].summary()[0])}</p>" in names["found"]._repr_html_()
    for file in ("my-model/config.json", "digits.json", "runs/digits/last"):
        assert (tmp_path / file).exists()


def test_it_names_all_that_is_public():
    named = set(re.findall(r"\btpt\.(\w+)", TEXT))
    # What their own pages describe.
    elsewhere = {"LSTM", "LSTMConfig", "Results", "Transformer", "TransformerConfig"}
    elsewhere |= {"Vocabulary", "trace", "__version__"}
    assert set(tpt.__all__) - named == elsewhere
    data = set(re.findall(r"tpt\.data\.(\w+)", TEXT))
    assert set(tpt.data.__all__) - data == {"Example", "Split", "Store"}
    assert data <= set(tpt.data.__all__)
    for name in tpt.interpret.ANALYSES:
        assert name.replace("-", "_") in TEXT


@pytest.mark.slow
def test_type_checkers_accept_it(program, tmp_path):
    wrong = "\ntpt.evaluat\ntpt.data.opens\nstore['train'].collat\nresults.fram\n"
    for name, code in (("page", program), ("wrong", f"{program}{wrong}")):
        (tmp_path / f"{name}.py").write_text(code, "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports"]
    command += ["--allow-untyped-calls"]  # of torch's backward
    command += [f"--cache-dir={tmp_path / 'cache'}", "--config-file="]
    checked = {
        name: subprocess.run([*command, f"{name}.py"], cwd=tmp_path, capture_output=True, text=True)
        for name in ("page", "wrong")
    }
    assert checked["page"].returncode == 0, checked["page"].stdout
    assert checked["wrong"].stdout.count("attr-defined") == 4, checked["wrong"].stdout
