"""The command line: what it prints, and one line with exit code 2 for what a user gets wrong."""

import subprocess
import sys

import pytest

from tp_transformer import __version__
from tp_transformer.cli import main
from tp_transformer.published import TABLE_1


def run(capsys, *arguments):
    """The exit code, standard output and standard error of `tpt` with these arguments."""
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_models_prints_the_counts_beside_the_papers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(capsys, "models")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split() for line in out.splitlines()}
    assert rows["tp-transformer"][1:4] == ["hadamard", "49,178,112", "49.1M"]
    assert rows["transformer"][1:4] == ["none", "44,187,648", "44.2M"]
    assert rows["lstm-saxton"][1:4] == ["-", "17,766,495", "18M"]
    assert rows["tp-transformer-tiny"][3] == "-"
    assert list(rows)[1 : len(TABLE_1) + 1] == list(TABLE_1)
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "tpt: expected"),
        (("nonsense",), "invalid choice: 'nonsense'"),
        (("models", "--nonsense"), "unrecognized arguments: --nonsense"),
        (("models", "--training.steps=3"), "unrecognized arguments: --training.steps=3"),
        (
            ("train", "--config", "tp-transformer-tiny", "--run", "x", "--steps=3"),
            "--training.steps",
        ),
        (("import-authors", "x.pt"), "required"),
        (("import-authors", "x.pt", "--vocab", "v.pt", "--out", "o", "--heads", "many"), "heads"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("tpt: ")
    assert err.count("\n") == 1


def test_every_verb_has_help(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for verb in ("demo", "models", "evaluate", "compare", "import-authors"):
        assert verb in out
        code, own, _ = run(capsys, verb, "--help")
        assert code == 0
        assert "usage" in own


def test_an_interruption_is_not_a_traceback(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tp_transformer.show.presets.models_table", interrupted)
    code, _, err = run(capsys, "models")
    assert (code, err) == (130, "tpt: interrupted\n")


def test_runs_as_a_module():
    command = [sys.executable, "-m", "tp_transformer", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(__version__)
