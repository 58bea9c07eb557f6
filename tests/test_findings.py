"""The page on the bundled models: its generated parts, and the command that writes them."""

import re
import shutil
import sys

import pytest
import update_findings

import tp_transformer as tpt
from documents import ROOT
from tp_transformer.cli import main
from tp_transformer.interpret.core.sample import Sample

PAGE = ROOT / "docs" / "findings.md"
QUESTIONS = tuple(f"What is the tens digit of {number}?" for number in range(5310, 5350))
DIGITS = Sample(questions=QUESTIONS, answers=("1",) * len(QUESTIONS), origin="digits")


def marks(text):
    """The parts between two marks, by name."""
    return dict(re.findall(r"<!-- ([\w ]+) -->\n(.*?)<!-- end of \1 -->", text, flags=re.DOTALL))


def test_every_part_of_the_page_has_been_written():
    found = marks(PAGE.read_text("utf-8"))
    assert len(found) == 8
    assert all("|---" in text for text in found.values())


def test_a_head_that_attends_to_the_digit_asked_for_is_found():
    model = tpt.build("tp-transformer-tiny", d_model=32)
    at = 1 + QUESTIONS[0].index("?") - 2

    def attend(weights):
        weights = weights.clone()
        weights[:, 3] *= 0.1
        weights[:, 3, :, at] += 0.9
        return weights

    before = update_findings.to_asked_digit(model, DIGITS, seed=1)
    assert before["asked"] < 0.2
    with model.trace(edit={"decoder.1.cross_attention.weights": attend}):
        found = update_findings.to_asked_digit(model, DIGITS, seed=1)
    assert (found["head"], found["n"]) == ("1.3", len(QUESTIONS) // 2)
    low, high = found["interval"]
    assert 0.9 < low <= found["asked"] <= high < 1
    assert found["others"] < 0.05
    assert abs(found["untrained_margin"]) < 0.2


@pytest.mark.slow
def test_the_command_writes_the_page(tmp_path, monkeypatch):
    """On a few questions; the second time, it only reads the results of the first."""
    monkeypatch.chdir(tmp_path)
    sizes = ["--count=1", "--test-count=40", "--workers=1"]
    main(["data", "generate", "--out=math", "--modules", *update_findings.MODULES, *sizes])
    shutil.copy(PAGE, tmp_path)
    arguments = ["math", "--out", "out", "--count", "24", "--page", "findings.md"]
    monkeypatch.setattr(sys, "argv", ["update_findings.py", *arguments])
    update_findings.main()
    page = (tmp_path / "findings.md").read_text("utf-8")
    assert marks(page).keys() == marks(PAGE.read_text("utf-8")).keys()
    assert page != PAGE.read_text("utf-8")
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {
        "findings-probes.svg",
        "findings-relations.svg",
    }
    monkeypatch.setattr(update_findings, "ANALYSES", {})
    update_findings.main()
    assert (tmp_path / "findings.md").read_text("utf-8") == page
