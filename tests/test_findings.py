"""The page on the claims of the paper: its criteria, its tables, the command that writes them."""

import json
import re
import shutil
import sys

import claims
import pytest
import update_findings
from claims import CLAIMS, Outcome

import tp_transformer as tpt
from documents import ROOT
from tp_transformer.data.mathematics.partial import Order
from tp_transformer.data.mathematics.produce import produce
from tp_transformer.foundation.parallel import workers
from tp_transformer.model import bundled
from tp_transformer.model.identity import model_hash

PAGE = ROOT / "docs" / "findings.md"


def marks(text):
    """The parts between two marks, by name."""
    return dict(re.findall(r"<!-- ([\w ]+) -->\n(.*?)<!-- end of \1 -->", text, flags=re.DOTALL))


def test_every_part_of_the_page_has_been_written():
    found = marks(PAGE.read_text("utf-8"))
    assert found.keys() == {"models", "scores", "claims", "numbers", "surgery"}
    assert all("|---" in text for text in found.values())
    for claim in CLAIMS:
        assert claim.text in found["claims"]
        assert claim.criterion in found["numbers"]


def test_the_page_is_about_the_bundled_models():
    """If this fails after `tpt bundle`, run `python docs/update_findings.py`."""
    table = marks(PAGE.read_text("utf-8"))["models"]
    for name in bundled.names()[:2]:
        assert f"| `{name}` |" in table
        assert f"`{model_hash(tpt.load(name))[:12]}`" in table, (
            f"the page has other weights: {name}"
        )


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [
        ([True, True, True], "supported"),
        ([True, None], "supported"),
        ([False, False], "not supported"),
        ([True, False, None], "supported by 1 of 2"),
        ([None, None], "not testable"),
        ([], "not testable"),
    ],
)
def test_the_verdict_over_seeds(holds, verdict):
    assert claims.verdict([Outcome(one, "") for one in holds]) == verdict


def test_a_contrast_needs_the_one_and_not_the_other():
    contrast = next(claim for claim in CLAIMS if claim.is_contrast)

    def ratio(high):
        values = {"ratio_to_control": {"value": high - 0.1, "interval": [high - 0.2, high]}}
        values |= {"initial_ratios_to_control": [0.98, 1.01], "exchanges": [{"n_answered": 1}]}
        return {"binding": {**values, "sample": {"questions": [""]}}}

    assert contrast.verdict([ratio(1.1)], [ratio(0.9)]) == "supported"
    assert contrast.verdict([ratio(0.9)], [ratio(0.9)]) == "not supported"
    assert contrast.verdict([ratio(1.1)], [ratio(1.1)]) == "not supported"


def test_points_have_no_negative_zero():
    assert [claims.points(share) for share in (-0.004, 0.004, -0.006, 0.146)] == [
        *("0", "0", "-1", "+15")
    ]


@pytest.mark.slow
def test_the_command_writes_the_page(tmp_path, monkeypatch):
    """The second time, the command only reads the results."""
    monkeypatch.chdir(tmp_path)
    order = Order(modules=("arithmetic__mixed",), count=1, test_count=300)
    produce(order, tmp_path / "arithmetic", workers(1))
    for name in ("tp", "plain"):
        shutil.copytree(ROOT / "models" / name / "seed-0", tmp_path / name / "seed-0")
    shutil.copy(PAGE, tmp_path)
    arguments = ["tp", "plain", "--data", "arithmetic", "--out", "out", "--page", "findings.md"]
    arguments += ["--count", "16"]
    monkeypatch.setattr(sys, "argv", ["update_findings.py", *arguments])
    update_findings.main()
    page = (tmp_path / "findings.md").read_text("utf-8")
    assert marks(page).keys() == marks(PAGE.read_text("utf-8")).keys()
    assert (tmp_path / "figures" / "findings-reversal.svg").is_file()
    monkeypatch.setattr(update_findings, "interpret", None)
    update_findings.main()
    assert (tmp_path / "findings.md").read_text("utf-8") == page
    file = tmp_path / "out" / "tp" / "seed-0" / "binding" / "binding.json"
    assert json.loads(file.read_text("utf-8"))["sample"]["questions"]
