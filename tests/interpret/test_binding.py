"""Models that must confuse structures, and models that must not."""

import json
import re
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer.interpret import binding
from tp_transformer.interpret.binding import (
    CONFUSABLE,
    CONTROL,
    HIGHER,
    LOWER,
    STRUCTURES,
    UNCLEAR,
    SimplifiedNetwork,
    _distances,
    _ratio,
    simplified,
)
from tp_transformer.interpret.core.sample import NestedFraction, drawn_sample


def network_and_states(d_model=5, seed=0):
    rng = np.random.default_rng(seed)
    return SimplifiedNetwork.random(d_model, rng), rng.standard_normal((5, d_model))


@pytest.mark.parametrize("seed", range(3))
def test_the_network_is_that_of_the_equations(seed):
    """Equations 9 to 11, written down term by term."""
    network, states = network_and_states(seed=seed)
    a, b, c, d, e = states

    def o(layer, vector):
        return network.outputs[layer] @ vector

    def v(layer, vector):
        return network.values[layer] @ vector

    def r(vector):
        return network.role @ vector + network.role_bias

    standard = e + o(1, v(1, a + c + o(0, v(0, b)) + o(0, v(0, d)))) / 2
    for structure in STRUCTURES:
        before, after = network.read(states, structure, "standard")
        np.testing.assert_array_equal(before, e)
        np.testing.assert_allclose(after, standard, rtol=1e-12)
    bound = e + o(1, v(1, a + c + o(0, v(0, b) * r(a)) + o(0, v(0, d) * r(c)))) / 2
    np.testing.assert_allclose(network.read(states, STRUCTURES[0], "tp")[1], bound, rtol=1e-12)
    bound = e + o(1, v(1, a + c + o(0, v(0, d) * r(a)) + o(0, v(0, b) * r(c)))) / 2
    np.testing.assert_allclose(network.read(states, STRUCTURES[1], "tp")[1], bound, rtol=1e-12)


def test_standard_attention_collides_to_machine_precision_and_tp_attention_does_not():
    found = simplified(draws=20, seed=1)
    assert found.distances["standard"].shape == (len(found.sizes), 20)
    assert found.distances["standard"].max() < 1e-14
    assert found.distances["equal roles"].max() < 1e-14
    assert found.distances["tp"].min() > 1e-3
    assert np.median(found.distances["tp"]) > 0.3


def test_the_confusable_exchanges_are_those_that_the_network_confuses():
    network, states = network_and_states(d_model=16)
    confused = {"standard": set(), "tp": set()}
    for attention, found in confused.items():
        _, before = network.read(states, STRUCTURES[0], attention)
        for one, other in combinations(range(4), 2):
            turned = states.copy()
            turned[[one, other]] = states[[other, one]]
            _, after = network.read(turned, STRUCTURES[0], attention)
            if np.linalg.norm(before - after) < 1e-12:
                found.add("abcd"[one] + "abcd"[other])
    assert confused == {"standard": set(CONFUSABLE), "tp": set()}


def bag_of_tokens():
    """A model that cannot tell the position of a token: no positions, uniform attention."""
    model = tpt.build("transformer-tiny", d_model=32)
    model.embedding._positions = torch.zeros(200, 32)
    for cell in model.encoder:
        for name in ("query", "key"):
            for tensor in cell.self_attention.maps()[name]:
                tensor.zero_()
    return model


def test_a_model_that_cannot_tell_structures_apart_is_seen_through():
    result = binding(bag_of_tokens(), drawn_sample(12, 0), draws=2)
    for one in result.exchanges:
        assert one.at_operator < 1e-5
        assert one.elsewhere < 1e-5
    assert result.ratio is None
    assert result.verdict is None
    assert "does not move" in " ".join(result.summary())


class Solver:
    """Answers in the place of a model: rightly, or as if b and d had no places of their own."""

    def __init__(self, confuses):
        self.confuses = confuses

    def __call__(self, questions):
        return [self.answer(question) for question in questions]

    def answer(self, question):
        a, b, c, d = (int(one) for one in question if one.isdigit())
        if self.confuses:
            b, d = sorted((b, d))
        return str(Fraction(a * d, b * c))


@pytest.mark.parametrize("preset", ["tp-transformer-tiny", "transformer-tiny"])
def test_random_weights_prefer_no_exchange(preset, monkeypatch):
    for seed in range(2):
        torch.manual_seed(seed)
        model = tpt.build(preset, d_model=32)
        monkeypatch.setattr(model, "solve", Solver(confuses=False))  # their own take 30 tokens
        result = binding(model, drawn_sample(48, 0), draws=1)
        assert result.ratio.value == pytest.approx(1, abs=0.2)
        assert np.mean(result.initial_ratios) == pytest.approx(1, abs=0.1)
        assert len(set(result.initial_ratios)) == 5
        assert result.verdict == UNCLEAR


def distances_of(confusable, control):
    """As many questions each, moved by these distances and a little noise."""
    noise = np.random.default_rng(0).uniform(0.9, 1.1, (4, 40, 1)) * np.ones(2)
    sizes = dict(zip(CONFUSABLE + CONTROL, (confusable,) * 2 + (control,) * 2, strict=True))
    return {two: size * own for (two, size), own in zip(sizes.items(), noise, strict=True)}


@pytest.mark.parametrize(("confusable", "control"), [(0.1, 0.4), (0.4, 0.1), (0.2, 0.2)])
def test_the_ratio_is_that_of_the_planted_distances(confusable, control):
    found = _ratio(distances_of(confusable, control))
    assert found.value == pytest.approx(confusable / control, rel=0.03)
    low, high = found.interval
    assert low < found.value < high < 1.1 * low


def test_distances_are_relative_to_the_lengths_of_the_states():
    asked = NestedFraction(numbers=(2, 3, 4, 5), wording="{}")
    before = np.ones((13, 4))
    after = before.copy()
    after[asked.operator, 0] = -1
    at_operator, elsewhere = _distances(asked, 7 * before, 7 * after)
    assert at_operator == pytest.approx(2 / 2)
    assert elsewhere == pytest.approx(1 / 9)  # of nine positions without a number


def of_pairs(a, b, c, d):
    """What a network with the binding problem sees: which numbers are above, which below."""
    return np.eye(10)[[a, b]] + np.eye(10)[[c, d]]


def of_value(a, b, c, d):
    """What a network that computes the value has in the end."""
    value = np.log(a * d / (b * c)) * np.arange(1, 6)
    return np.concatenate([np.cos(value), np.sin(value)])


def of_places(a, b, c, d):
    """What a network sees that tells all four places apart, and no two more than others."""
    return np.eye(8)[[a - 2, b - 2, c - 2, d - 2]]


def with_planted_states(model, makes):
    """An edit of the last layer: what the outer operator's state is made of."""
    read = []
    model.embedding.register_forward_pre_hook(lambda _, given: read.append(given[0]))

    def edit(states):
        for row, ids in enumerate(read[-1].tolist()):
            tokens = [model.vocabulary.tokens[one] for one in ids]
            operator = next(i for i in range(len(ids)) if tokens[i : i + 3] == [")", "/", "("]) + 1
            made = makes(*(int(one) for one in tokens if one.isdigit())).ravel()
            # A trace of everything else, so that no exchange leaves the state as it was.
            states[row, operator] *= 0.02
            states[row, operator, : len(made)] += torch.from_numpy(made)
        return states

    return model.trace(edit={"encoder.1.output": edit})


@pytest.mark.parametrize(
    ("makes", "least", "most", "verdict"),
    [
        (of_pairs, 0, 0.1, LOWER),
        (of_value, 10, np.inf, HIGHER),
        (of_places, 0.99, 1.01, UNCLEAR),
    ],
)
def test_planted_states_are_told_apart(makes, least, most, verdict, monkeypatch):
    torch.manual_seed(0)
    model = tpt.build("tp-transformer-tiny", d_model=32)
    monkeypatch.setattr(model, "solve", Solver(confuses=False))
    with with_planted_states(model, makes):
        result = binding(model, drawn_sample(40, 0), draws=1)
    assert result.verdict == result.to_json()["verdict"] == verdict
    assert result.summary()[1].endswith(f"The ratio is {verdict}.")
    assert least < result.ratio.value < most


@pytest.mark.parametrize("confuses", [False, True])
def test_answers_that_are_confused_are_counted(confuses, monkeypatch):
    model = tpt.build("tp-transformer-tiny", d_model=32)
    monkeypatch.setattr(model, "solve", Solver(confuses))
    result = binding(model, drawn_sample(40, 0), draws=2)
    found = {one.letters: one for one in result.exchanges}
    assert found["bd"].n_answered == (40 if not confuses else pytest.approx(20, abs=10))
    assert found["bd"].n_same == (found["bd"].n_answered if confuses else 0)
    assert found["bd"].n_right == (0 if confuses else 40)
    assert found["ab"].n_same == 0
    if not confuses:
        assert found["bc"].n_same == found["bc"].n_right == 40
    drawn = result.plot()["binding"].axes[0].get_yticklabels()
    assert drawn[1].get_text() == f"b ↔ d {'100%' if confuses else '0%'} same"
    low, high = found["bd"].same_interval
    assert low <= found["bd"].n_same / found["bd"].n_answered <= high


@pytest.mark.parametrize("preset", ["tp-transformer-tiny", "transformer-tiny"])
def test_the_whole_analysis_is_written_and_drawn(preset, tmp_path):
    model = tpt.build(preset, d_model=32)
    result = binding(model, drawn_sample(10, 0), draws=3, layer=0)
    assert result.ratio.interval[0] < result.ratio.value < result.ratio.interval[1]
    files = result.save(tmp_path)
    assert [file.suffix for file in files] == [".json", ".svg", ".pdf", ".png"]
    values = json.loads(files[0].read_text())
    assert values["sample"]["origin"] == "10 nested fractions of digits (seed 0)"
    assert values["layer"] == 0
    assert len(values["exchanges"]) == 6
    assert values["exchanges"][0]["same_interval"] is None  # nothing is answered
    assert "answers none" in values["summary"][-1]
    words = " ".join(files[1].read_text().split())
    assert not re.search("(?<!un)trained", words)  # nothing is known of its training
    assert "same" not in words.lower()  # there are no counts
    assert "Lines: 95% intervals over questions." in words
    low, high = min(result.initial_ratios), max(result.initial_ratios)
    assert f"{result.ratio} as far as the control; in untrained models, {low:.2f} to" in words
    assert f"to {high:.2f} times" in words


def test_one_question_is_enough():
    result = binding(tpt.build("tp-transformer-tiny", d_model=32), drawn_sample(1, 0), draws=1)
    assert result.exchanges[0].at_operator_interval is None
    assert result.ratio.interval is None
    assert result.context.sample.origin == "1 nested fraction of digits (seed 0)"
    text = " ".join(result.summary())
    assert "times (no interval: fewer than 10 questions)" in text
    assert "because there are too few questions." in text
