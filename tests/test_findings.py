"""The page on the bundled models: its generated parts, and the command that writes them."""

import re
import shutil
import sys
from types import SimpleNamespace

import findings_text
import pytest
import torch
import update_findings

import tp_transformer as tpt
from documents import ROOT
from tp_transformer.cli import main
from tp_transformer.data.store import MANIFEST
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.model import bundled
from tp_transformer.model.identity import model_hash

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


def test_the_page_is_about_the_bundled_models():
    """If this fails after `tpt bundle`, run `python docs/update_findings.py`."""
    table = marks(PAGE.read_text("utf-8"))["models"]
    assert bundled.names()
    for name in bundled.names():
        sha256 = model_hash(tpt.load(name))
        assert f"`{name}`" in table
        assert f"`{sha256[:12]}`" in table, f"the page is about other weights of {name}"


def test_points_have_no_negative_zero():
    shares = (-0.004, 0.004, -0.006, 0.146)
    assert [findings_text._points(share) for share in shares] == ["0", "0", "-1", "15"]


def test_results_of_other_weights_data_or_code_are_not_used_again(tmp_path, monkeypatch):
    computed = []
    compute = ("binding", "", lambda: {"number": computed.append(1) or len(computed)})
    monkeypatch.setattr(update_findings, "analyses", lambda *_: [compute])
    state = {"commit": "a", "seed": 0}

    def load(_):
        torch.manual_seed(state["seed"])
        return tpt.build("tp-transformer-tiny", d_model=32)

    monkeypatch.setattr(update_findings, "load", load)
    monkeypatch.setattr(update_findings.provenance, "commit", lambda: state["commit"])
    store = SimpleNamespace(path=tmp_path)

    def number(count=24):
        found = update_findings.analysed(["model"], store, tmp_path, count)
        return found["model", "binding", ""]["number"]

    (tmp_path / MANIFEST).write_text("{}", "utf-8")
    assert [number(), number()] == [1, 1]
    (tmp_path / MANIFEST).write_text("[]", "utf-8")
    assert [number(), number()] == [2, 2]
    state["commit"] = "b"
    assert [number(), number()] == [3, 3]
    state["seed"] = 1
    assert [number(), number()] == [4, 4]
    assert [number(25), number(25)] == [5, 5]


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
