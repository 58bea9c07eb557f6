"""What the documents say is true: their Python runs, their commands exist, their output is real."""

import re
import shlex
from pathlib import Path

import pytest

import tp_transformer
from tp_transformer import cli
from tp_transformer.data.leaks import MAX_ATTEMPTS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language, text=README):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_its_python_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102


def test_it_has_python_and_commands():
    assert len(blocks("python")) == 5
    assert len(commands(README)) >= 4


def commands(text):
    lines = "\n".join(blocks("console", text)).splitlines()
    return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_its_commands_exist(document):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
    for program, *arguments in commands((ROOT / document).read_text("utf-8")):
        if program == "make":
            assert arguments[0] in targets
        elif program == "tpt":
            cli._parser().parse_args(arguments)
        else:
            assert [program, *arguments] == ["pip", "install", "."]


def test_its_table_of_models_is_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    cli.main(["models"])
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    (shown,) = (block for block in blocks("console") if block.startswith("$ tpt models"))
    assert shown.splitlines()[1:] == printed


def test_its_links_lead_somewhere():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\(([^)]+)\)", document.read_text("utf-8")):
            assert link.startswith("https://") or (document.parent / link).exists(), link


def test_the_documents_numbers_are_the_codes():
    text = (ROOT / "docs" / "data.md").read_text("utf-8")
    assert f"up to {MAX_ATTEMPTS} times" in text
    text = (ROOT / "docs" / "model.md").read_text("utf-8")
    assert f"up to {tp_transformer.TransformerConfig().n_positions} of them" in text
    assert f"{len(tp_transformer.Vocabulary())} symbols" in text


def test_the_version_is_stated_once_more_only_in_the_citation():
    assert f"version: {tp_transformer.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
