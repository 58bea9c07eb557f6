"""The page on the claims of the paper: its criteria, its tables, the command that writes them."""

import json
import re
import shutil
import sys

import pytest

import claims
import tp_transformer as tpt
import update_findings
from claims import CLAIMS, Outcome
from corpora import make_store
from documents import ROOT
from tp_transformer.data.mathematics.produce import Order, produce
from tp_transformer.interpret.roles.reversal import REVERSED, UNCLEAR
from tp_transformer.model.checkpoint import model_hash
from tp_transformer.runtime.processes import workers
from tp_transformer.scoring.statistics import wilson

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


def test_the_page_is_about_the_models_of_the_repository():
    """If this fails, run `python tools/update_findings.py`."""
    table = marks(PAGE.read_text("utf-8"))["models"]
    rows = re.findall(r"^\| `(\w+/seed-\d+)` .*`(\w+)` \|$", table, flags=re.MULTILINE)
    assert len(rows) >= 3
    for name, sha256 in rows:
        assert model_hash(tpt.load(ROOT / "models" / name))[:12] == sha256, name


@pytest.mark.parametrize(
    ("holds", "controls", "verdict"),
    [
        ([True, True, True], [], "supported"),
        ([True, True], [[True, False], [False]], "supported"),
        ([True, True], [[], [False, True], [True]], "supported, not specific to roles"),
        ([True, None], [], "supported (1 of 2 seeds testable)"),
        ([False, False], [[True]], "not supported"),
        ([False, None, None], [], "not supported (1 of 3 seeds testable)"),
        ([True, False, None], [], "supported by 1 of 2 (2 of 3 seeds testable)"),
        ([None, None], [[True]], "not testable"),
        ([], [], "not testable"),
    ],
)
def test_the_verdict_over_seeds(holds, controls, verdict):
    outcomes = [[Outcome(one, "") for one in own] for own in [holds, *controls]]
    assert claims.verdict(outcomes[0], outcomes[1:]) == verdict


def claim_on(start, needs):
    """The claim whose text starts like this, and its test."""
    return next(one for one in CLAIMS if one.text.startswith(start) and one.needs == needs)


def holds(start, needs, values):
    (outcome,) = claim_on(start, needs).outcomes([{needs: values}])
    return outcome.holds


def named(*names, untrained=(0, 0, 0)):
    heads = [{"head": 0, "names": [name and {"name": name} for name in names]}]
    return {"heads": heads, "clusters": 20, "initial_structural_names": untrained}


@pytest.mark.parametrize(
    ("values", "sides", "ones"),
    [
        (named("numerator", "ones digit, denominator", None), True, False),
        (named("numerator, ones digit", "ones digit, denominator"), True, True),
        (
            named("numerator, ones digit", "ones digit, denominator", untrained=(0, 1, 0)),
            False,
            False,
        ),
        (named("numerator", "ones digit", None), False, False),
    ],
)
def test_clusters_need_both_sides_and_more_than_untrained_models(values, sides, ones):
    assert holds("There are separate clusters", "roles", values) == sides
    assert holds("There are clusters for ones", "roles", values) == ones


def test_clusters_of_both_sides_must_be_of_one_head():
    values = named("numerator")
    values["heads"].append({"head": 1, "names": [{"name": "denominator"}]})
    assert not holds("There are separate clusters", "roles", values)


@pytest.mark.parametrize(
    ("low", "text", "untrained", "expected"),
    [(0.9, 0.8, 0.7, True), (0.9, 0.95, 0.7, False), (0.9, 0.8, 0.95, False)],
)
def test_a_probe_must_be_above_text_and_untrained_models(low, text, untrained, expected):
    def reader(high):
        return {"accuracy": high - 0.05, "interval": [high - 0.1, high]}

    probe = {"accuracy": low + 0.05, "interval": [low, low + 0.1]}
    score = {"label": "side", "layer": 1, "head": 2, "probe": probe}
    label = {"name": "side", "obstacle": None, "readers": {"0": reader(text)}}
    label["initial"] = [reader(0.5), reader(untrained)]
    values = {"labels": [label], "scores": [score]}
    assert holds("Vectors of one head tell", "roles", values) == expected
    label["obstacle"] = "too few"
    assert holds("Vectors of one head tell", "roles", values) is None


@pytest.mark.parametrize("verdicts", [(REVERSED, UNCLEAR), (UNCLEAR, REVERSED)])
def test_the_last_layer_must_be_reversed(verdicts):
    transfer = {"reversed_share": 0.5, "interval": [0.4, 0.6]}
    layers = [
        {"kind": kind, "transfer": transfer, "n_reversed": 1, "n_heads": 2, "verdict": verdict}
        for kind, verdict in [("probe", UNCLEAR), *(("clusters", one) for one in verdicts)]
    ]
    values = {"reversal": {"obstacle": None, "model": {"layers": layers}}}
    assert holds("Clusters are reversed", "roles", values) == (verdicts[-1] == REVERSED)
    assert holds("Vectors are reversed", "roles", values) is False
    values["reversal"]["obstacle"] = "too few questions"
    assert holds("Clusters are reversed", "roles", values) is None


def sides(verdict, interval=(0.1, 0.2)):
    contrast = {"value": 0.15, "interval": interval}
    return {"n_sets": 12, "kept": contrast, "flipped": contrast, "verdict": verdict}


@pytest.mark.parametrize(
    ("by_layer", "expected"),
    [
        ([sides("copies disturb less"), sides("roles act as reversed sides")], True),
        ([sides("copies disturb less"), sides("roles act as unreversed sides")], False),
        ([sides("it is not clear that roles act as sides", None)] * 2, None),
        ([None], None),
    ],
)
def test_roles_act_as_reversed_sides_in_a_layer(by_layer, expected):
    values = {"interchanges": [{"sides": own} for own in by_layer]}
    assert holds("The reversal is", "interchange", values) == expected


def test_answers_follow_roles_in_a_layer():
    counts = {name: {"exchanged": 3} for name in ("places", "moved", "numbers")}
    one = {"n": 10, "follows": False, "exchanges": [{"n": 10, **counts}]}
    values = {"interchanges": [one, {**one, "follows": True}]}
    assert holds("Answers follow roles", "interchange", values)
    assert holds("Answers follow roles", "interchange", {"interchanges": [one]}) is False
    assert holds("Answers follow roles", "interchange", {"interchanges": [{**one, "n": 0}]}) is None


def test_a_head_must_clearly_follow_a_relation():
    head = {"layer": 0, "head": 1, "margin": 0.2, "interval": [0.1, 0.3], "is_clear": True}
    ranking = {"relation": "denominator to its division", "n_questions": 5, "heads": [head]}
    values = {"rankings": [ranking]}
    assert holds("A head attends from denominators", "attention", values)
    head["is_clear"] = False
    assert holds("A head attends from denominators", "attention", values) is False
    head["interval"] = None
    assert holds("A head attends from denominators", "attention", values) is None


@pytest.mark.parametrize(
    ("low", "random", "mse", "information", "small"),
    [
        (0.95, 0.5, 0.01, True, True),
        (0.95, 0.97, 0.018, False, False),
        (0.85, 0.5, 0.017, False, True),
    ],
)
def test_information_needs_more_than_random_maps(low, random, mse, information, small):
    protocol = {reading: {"average_mse": mse} for reading in ("positions", "problems")}
    held_out = {"average_r2": low, "average_interval": [low, 1], "random_map_range": [0.1, random]}
    state = {"paper_protocol": protocol, "held_out": {**held_out, "optimum_r2": 1}}
    values = {"states": {"input": state}}
    assert holds("So the value vector", "information", values) == information
    assert holds("The state is reconstructed", "information", values) == small


@pytest.mark.parametrize(
    ("n_same", "n_answered", "expected"),
    [(0, 30, False), (9, 30, True), (1, 30, False), (0, 0, None)],
)
def test_confusion_is_a_share_of_equal_answers(n_same, n_answered, expected):
    def exchange(letters, n):
        return {"letters": letters, "n_answered": n_answered, "n_same": n, "n_right": 0,
                "same_interval": wilson(n, n_answered) if n_answered else None}  # fmt: skip

    exchanges = [exchange("ac", 0), exchange("bd", n_same), exchange("ad", n_answered)]
    values = {"exchanges": exchanges, "kinds": {"confusable": ["ac", "bd"]}}
    values |= {"ratio_to_control": {"value": 2.0}, "sample": {"questions": [""] * 40}}
    assert holds("A trained Transformer", "binding", values) == expected


def test_the_simplified_network():
    def values(standard, tp):
        distances = {"standard": [{"greatest": standard}], "tp": [{"least": tp}]}
        return {"simplified": distances}

    assert holds("The simplified network", "binding", values(1e-15, 1e-3))
    assert not holds("The simplified network", "binding", values(1e-3, 1e-3))
    assert not holds("The simplified network", "binding", values(1e-15, 1e-15))


def test_shares_of_the_variance():
    def heads(hadamard):
        shares = {"optimum": 0.8, "aligned": 0.4, "random": 0.06, "random_range": [0.05, 0.08]}
        return [{"variance": {"hadamard": share, **shares}} for share in hadamard]

    def values(own, initial):
        return {"heads": heads(own), "initial": [heads(initial)]}

    assert holds("The Hadamard product", "tensor-product", values([0.75] * 3, [0.06] * 3))
    good = values([0.1, 0.1, 0.06], [0.1, 0.06, 0.06])
    assert not holds("The Hadamard product", "tensor-product", good)
    assert holds("Training turns", "tensor-product", good)
    assert not holds("Training turns", "tensor-product", values([0.1, 0.1, 0.06], [0.1, 0.1, 0.06]))
    assert not holds("Training turns", "tensor-product", values([0.1, 0.06, 0.06], [0.06] * 3))


def test_other_seeds_and_other_questions_are_refused(tmp_path, monkeypatch):
    for name, seed in (("tp", 0), ("plain", 1)):
        (tmp_path / name / f"seed-{seed}").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    arguments = ["tp", "plain", "--data", "data", "--out", "out"]
    monkeypatch.setattr(sys, "argv", ["update_findings.py", *arguments])
    with pytest.raises(SystemExit, match="with the same seeds first"):
        update_findings.main()
    make_store(tmp_path / "data", {("interpolate", "arithmetic__mixed", None): [("1 + 1", "2")]})
    update_findings.require_inputs(tmp_path / "out", tmp_path / "data", 16)
    update_findings.require_inputs(tmp_path / "out", tmp_path / "data", 16)
    with pytest.raises(SystemExit, match="results of other questions"):
        update_findings.require_inputs(tmp_path / "out", tmp_path / "data", 17)


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
