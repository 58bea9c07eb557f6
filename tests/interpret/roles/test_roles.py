"""Roles from a model: what is planted in a head is found there, and nowhere else."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

import tp_transformer as tpt
from planted import by_length, quotients, sample
from tp_transformer import UserError, figures
from tp_transformer.interpret import roles
from tp_transformer.interpret.core.record import cluster
from tp_transformer.interpret.core.sample import Sample, token_characters
from tp_transformer.interpret.roles import analysis
from tp_transformer.interpret.roles.clusters import Name, cluster_looks
from tp_transformer.interpret.roles.probes import Positions
from tp_transformer.interpret.roles.reversal import LIKE_CONTROLS, REVERSED

SAMPLE = by_length(sample(32))  # as many as pass a model at once
HEAD = 2


def plant(tensor):
    """Roles of noise, but for a head whose roles say on which side of a fraction they stand."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=tuple(tensor.shape))
    positions = Positions.of(SAMPLE)
    centre = {"numerator": 20 * np.eye(8)[0], "denominator": 20 * np.eye(8)[1], None: np.zeros(8)}
    at = 0
    for number, question in enumerate(SAMPLE.questions):
        for position in range(len(token_characters(question))):
            values[number, HEAD, position] += centre[positions.labels["side"][at]]
            at += 1
    return torch.tensor(values, dtype=tensor.dtype)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return tpt.build("tp-transformer-tiny", d_model=32, n_heads=4)


@pytest.fixture(scope="module")
def found(model):
    with model.trace(edit={"encoder.1.self_attention.role": plant}):
        return roles(model, SAMPLE, clusters=3)


def test_questions_without_an_expression_have_labels_of_their_own(model):
    numbers = np.random.default_rng(0).integers(1000, 9999, size=32)
    asked = tuple(f"What is the tens digit of {number}?" for number in numbers)
    given = by_length(Sample(questions=asked, answers=asked, origin="digits"))

    def plant(tensor):
        values = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
        values[:, HEAD, 29] += (
            20 * torch.eye(8)[0]
        )  # the third of four digits; 0 is the start token
        return values

    with model.trace(edit={"encoder.1.self_attention.role": plant}):
        found = roles(model, given, clusters=2)
    assert [label.name for label in found.scored] == ["digit place", "asked for"]
    assert score(found, 1, HEAD, "asked for").probe.accuracy == 1
    assert score(found, 1, 0, "asked for").probe.accuracy < 0.9
    assert "asked for" in {str(name).split(", ")[0] for name in found.heads[HEAD].names if name}


def score(found, layer, head, label):
    return next(
        one for one in found.scores if (one.layer, one.head, one.label) == (layer, head, label)
    )


def test_planted_roles_are_found(found):
    planted = score(found, 1, HEAD, "side")
    assert planted.information.score > 0.95
    assert planted.information.baseline_interval[1] < planted.information.interval[0]
    assert planted.probe.accuracy > 0.97
    assert planted.probe.interval[0] > found.labels[0].readers[0].accuracy
    names = {str(name).split(",")[0] for name in found.heads[HEAD].names if name is not None}
    assert {"numerator", "denominator"} <= names


def test_untrained_models_stand_beside_every_label(found):
    side = found.labels[0]
    assert len(side.initial) == analysis.INITIAL_DRAWS
    assert side.best_initial.accuracy == max(one.accuracy for one in side.initial) < 0.8
    line = next(line for line in found.summary() if line.startswith("side:"))
    shares = ", ".join(f"{one.accuracy:.0%}" for one in side.initial)
    assert "scores more than the best of as many heads of untrained models" in line
    (row,) = (row for row in found.tables()[0].rows if row[0] == "side")
    best = score(found, 1, HEAD, "side").probe
    assert row[1:3] == (f"1.{HEAD}", f"{best.accuracy:.0%}")
    assert row[4:] == (
        shares,
        f"{side.best_reader.accuracy:.0%} ({side.best_reach})",
        f"{best.majority:.0%}",
    )
    assert "not clearly more than the best of as many" not in line
    argument = next(line for line in found.summary() if line.startswith("argument:"))
    assert "not clearly more than the best of as many heads of untrained models" in argument


def test_an_untrained_model_is_no_better_than_untrained_ones():
    torch.manual_seed(1)
    model = tpt.build("tp-transformer-tiny", d_model=32, n_layers=1)
    found = roles(model, SAMPLE, clusters=3)
    lines = [line for line in found.summary() if "heads of untrained models" in line]
    assert len(lines) >= 3
    for line in lines:
        assert "not clearly more than the best of as many heads of untrained models" in line
    assert REVERSED not in found.summary()[-1]


def test_the_strongest_reader_of_the_text_sees_as_far_as_it_takes(model):
    """Which side a number is on is told by the parentheses up to six characters away."""
    side = roles(model, quotients(60), head=0, clusters=3).labels[0]
    assert side.readers[4].accuracy < 0.99
    assert side.best_reach >= 6
    assert side.best_reader.accuracy > 0.995
    assert max(side.readers) >= side.best_reach + 6


def test_planted_reversed_sides_are_found_to_be_reversed(found):
    planted = next(
        one for one in found.reversal.model.heads if (one.layer, one.head) == (found.layer, HEAD)
    )
    assert planted.probe.reversed_share > 0.95
    assert planted.clusters.reversed_share > 0.95
    own = [layer for layer in found.reversal.model.layers if layer.layer == found.layer]
    assert all(layer.n_reversed >= 1 and layer.n_heads == 4 for layer in own)
    # One head of four: above 50% on average, but less clearly than in the head itself.
    assert {found.reversal.verdict(layer) for layer in own} <= {REVERSED, LIKE_CONTROLS}
    assert f"probe, layer {found.layer} ({own[0].n_reversed} of 4 heads)" in found.summary()[-1]


def test_noise_is_not_found(found):
    assert len(found.scores) == 2 * 4 * 5
    seeming = []
    for head in set(range(4)) - {HEAD}:
        assert found.heads[head].names == (None,) * 3
        for label in found.labels:
            noise = score(found, 1, head, label.name)
            if noise.probe is not None:
                assert noise.information.score < 0.05
                seeming.append(noise.probe.interval[0] > noise.probe.majority)
    assert len(seeming) == 12
    assert sum(seeming) <= 2  # each with a chance of a fortieth


def test_clusters_are_numbered_along_their_main_direction():
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=200)
    vectors = rng.normal(size=(200, 5)) * 0.1
    vectors[:, 3] += np.array([0, 3, 9, 6])[truth]
    found = cluster(vectors, 4, seed=0)
    assert np.array_equal(found.assigned, np.array([0, 1, 3, 2])[truth])
    assert np.all(np.diff(found.centroids[:, 3]) > 2)
    again = cluster(vectors, 4, seed=0)
    assert np.array_equal(again.assigned, found.assigned)


def test_the_plain_transformer_is_read_in_its_values(model):
    plain = tpt.build("transformer-tiny", d_model=32, n_heads=4)
    few = Sample(questions=SAMPLE.questions[:8], answers=SAMPLE.answers[:8], origin="a few")
    found = roles(plain, few, head=3, layer=0, clusters=4)
    assert (found.vectors, found.layer) == ("value", 0)
    assert [one.head for one in found.heads] == [3]
    chosen = roles(model, few, head=0, clusters=4, vectors="value")
    assert chosen.vectors == "value"


def test_one_question_and_questions_without_expressions(model):
    for question in ("(1/2)/(3/456)", "Is 7 a prime number?"):
        few = Sample(questions=(question,), answers=("1",), origin="one question")
        found = roles(model, few, clusters=3)
        assert all(one.probe is None and one.information is None for one in found.scores)
        assert all(label.obstacle for label in found.labels)
        reasons = {label.obstacle for label in found.labels}
        assert len(found.summary()) == 2 + len(reasons)  # names, what is not scored, the reversal
        assert "not tested" in found.summary()[-1]
        assert found.tables() == []
        assert found.n_parsed == (question[0] == "(")
        json.dumps(found.to_json(), allow_nan=False)
        caption = figures.caption_of(next(iter(found.plot().values())))
        assert ("numerators blue" in caption) == (question[0] == "(")


@pytest.mark.parametrize("n_clusters", [3, 40])
def test_the_clusters_of_long_questions_can_be_read(model, tmp_path, n_clusters):
    questions = ("(1/2)/" + "9" * 72, *SAMPLE.questions[:12])
    longest = Sample(questions=questions, answers=("7",) * 13, origin="a long one, and others")
    result = roles(model, longest, head=HEAD, clusters=n_clusters)
    files = result.save(tmp_path)  # looked at by conftest
    words = files[1].read_text().splitlines()
    assert sum(word in "()/0123456789#%" for word in words) >= 80
    drawn = {word.split(":")[0] for word in words if ": " in word and word[0].isdigit()}
    assert len(drawn) <= n_clusters
    assert "# and % are the start and end tokens." in " ".join(words)


def test_what_cannot_be_clustered_is_refused(model):
    with pytest.raises(UserError, match="no vectors 'role' to cluster; it has value"):
        roles(tpt.build("transformer-tiny"), SAMPLE, vectors="role")
    few = Sample(questions=("1/2",), answers=("1",), origin="")
    with pytest.raises(UserError, match="20 clusters cannot be made of 5 different vectors"):
        roles(model, few)


def test_clusters_without_scikit_learn_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(UserError, match="pip install"):
        cluster(np.eye(3), 2, seed=0)


def test_fractions_of_fractions_are_shown_first():
    questions = ("1 + 2", "(1/2)/(3/4)", "1/2", "9" * 60 + "/(2/3)", "1/(2/3)")
    shown = Sample(questions=questions, answers=("7",) * 5, origin="some").shown
    assert shown(4, n_characters=50) == [4, 1, 2, 0]
    assert shown(4, n_characters=12) == [4, 2, 0, 1]


def test_controls_know_characters_and_positions_alone():
    positions = Positions.of(Sample(questions=("1/2", "3"), answers=("1", "3"), origin=""))
    features = positions.character_features(0)
    assert features.shape == (8, (1 + len("#%/123")) + 5)
    assert (features.sum(axis=1) == 2).all()
    assert (positions.character_features(2).sum(axis=1) == 6).all()


def test_numbers_and_figures_are_written(model, found, tmp_path):
    files = replace(found, heads=found.heads[HEAD:3]).save(tmp_path)
    assert len(files) == 1 + 2 * 3
    names = {file.name for file in files}
    assert {"roles.json", "roles-structure.svg", "roles-layer1-head2.pdf"} <= names
    assert all(file.stat().st_size > 100 for file in files)
    values = json.loads((tmp_path / "roles.json").read_text("utf-8"))
    assert values["vectors"] == "role"
    assert len(values["scores"]) == len(found.scores)
    assert "p_value" not in (tmp_path / "roles.json").read_text("utf-8")
    verdicts = [layer["verdict"] for layer in values["reversal"]["model"]["layers"]]
    assert verdicts == list(map(found.reversal.verdict, found.reversal.model.layers))
    assert len(values["labels"][0]["initial"]) == analysis.INITIAL_DRAWS


def test_clusters_are_coloured_by_the_sides_in_their_names():
    def name(*statements):
        return Name(statements=statements, purity=1.0, n_positions=10, n_questions=8)

    names = [name("numerator"), None, name("'/'"), name("ones digit", "denominator")]
    names += [name("numerator", "ones digit")]
    looks = cluster_looks(names)
    assert len(set(looks)) == len(names)
    for colour, own in zip((to_rgb(colour) for colour, _ in looks), names, strict=True):
        red, _, blue = colour
        side = own and own.side
        assert (blue > red + 0.1, red > blue + 0.1) == (
            side == "numerator",
            side == "denominator",
        )
    without = cluster_looks([None, name("'/'")])
    assert without == [figures.qualitative(0), figures.qualitative(1)]
