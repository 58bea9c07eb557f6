"""Reconstructions with a known outcome: maps with null spaces, vectors that know nothing."""

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer import UserError
from tp_transformer.interpret import information
from tp_transformer.interpret.core.record import record
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.information import Draws
from tp_transformer.scoring.published import RECONSTRUCTION_ERROR

analysis = import_module("tp_transformer.interpret.information")

TEXTS = tuple(f"What is {a} + {b}?" for a in range(3, 40, 5) for b in range(2, 60, 9))


def sample_of(texts):
    return Sample(questions=texts, answers=("7",) * len(texts), origin="some sums")


@pytest.fixture
def sample():
    return sample_of(TEXTS)


def questions_of(n, each=20):
    return np.repeat(np.arange(n), each)


def all_positions(states):
    """A single draw of every position."""
    return Draws.of_positions(np.arange(len(states)), len(states), np.random.default_rng(0))


def test_the_null_space_of_a_value_map_is_lost_and_nothing_else():
    """States of independent dimensions: what a map reads is known, what it does not read is not."""
    rng = np.random.default_rng(0)
    spread = np.array([4.0, 3.0, 2.0, 1.0, 1.0, 0.5])
    states = rng.standard_normal((4000, 6)) * spread + 5
    read_first = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    values = np.stack([states[:, :3] @ read_first + 1, states[:, 3:]], axis=1)
    found = analysis.held_out(values, states, states, questions_of(200), rng)
    power = np.square(spread)
    expected = [power[:3].sum() / power.sum(), power[3:].sum() / power.sum()]
    np.testing.assert_allclose(found.r2, expected, atol=0.01)
    np.testing.assert_allclose(found.mse, (1 - found.r2) * found.mean_mse)
    assert found.optimum_r2 == pytest.approx(expected[0], abs=0.01)
    assert found.mean_mse == pytest.approx(power.mean(), rel=0.05)
    worst, best = found.random_map_range
    assert expected[1] < worst < found.random_map_r2 < best < expected[0]
    for value, (low, high) in zip(found.r2, found.r2_intervals, strict=True):
        assert low < value < high < low + 0.1


def test_random_vectors_know_nothing_but_the_papers_protocol_thinks_they_do():
    rng = np.random.default_rng(2)
    states, values = rng.standard_normal((2000, 48)), rng.standard_normal((2000, 8, 24))
    found = analysis.held_out(values, states, states, questions_of(100), rng)
    assert (found.r2 < 0).all()
    assert found.average_interval[1] < 0.0
    paper = analysis.in_sample(values[:100], states[:100], all_positions(states[:100]))
    assert paper.expected_r2 == 24 / 99
    np.testing.assert_allclose(paper.r2, 24 / 99, atol=0.05)
    assert paper.r2.mean() == pytest.approx(24 / 99, abs=0.01)
    assert paper.control_r2 == pytest.approx(24 / 99, abs=0.01)
    # Of the true variance, 1, the error loses the share (d_head + 1) / n.
    assert paper.mse.mean() == pytest.approx(1 - 25 / 100, abs=0.02)


def test_what_is_known_of_a_question_does_not_help_with_others():
    """States and values that are constant in a question: known by heart, they explain it all."""
    rng = np.random.default_rng(5)
    questions = questions_of(10)
    states, values = rng.standard_normal((10, 30)), rng.standard_normal((10, 2, 8))
    found = analysis.held_out(
        values[questions], states[questions], states[questions], questions, rng
    )
    assert (found.r2 < 0).all()
    paper = analysis.in_sample(
        values[questions], states[questions], all_positions(states[questions])
    )
    assert (paper.r2 > 0.8).all()


def test_as_many_numbers_as_samples_explain_everything():
    rng = np.random.default_rng(3)
    values, states = rng.standard_normal((9, 1, 8)), rng.standard_normal((9, 5))
    paper = analysis.in_sample(values, states, all_positions(states))
    np.testing.assert_allclose(paper.r2, 1)
    assert paper.control_r2 == pytest.approx(1)
    assert paper.expected_r2 == 1.0


def test_no_linear_code_beats_the_principal_components_in_sample():
    rng = np.random.default_rng(4)
    states = rng.standard_normal((100, 12)) @ rng.standard_normal((12, 12))
    codes = np.stack([states @ rng.standard_normal((12, 3)) for _ in range(30)], axis=1)
    paper = analysis.in_sample(codes, states, all_positions(states))
    assert (paper.r2 < paper.optimum_r2).all()


@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("preset", ["tp-transformer-tiny", "transformer-tiny"])
def test_the_entering_state_is_what_the_value_map_reads(preset, layer, sample):
    model = tpt.build(preset, d_model=32)
    number = layer % 2
    before = "embedding" if number == 0 else "encoder.0.output"
    name = f"encoder.{number}.self_attention.value"
    found = record(model, sample, [before, name])
    entering = analysis._entering(model, number, found.flat(before))
    weight, bias = model.encoder[number].self_attention.maps()["value"]
    made = entering @ weight.double().numpy().T + bias.double().numpy()
    np.testing.assert_allclose(found.flat(name).reshape(made.shape), made, atol=1e-5)


def test_a_map_with_a_planted_null_space_is_seen_in_a_model(sample):
    """Head 1 reads only a direction in which normalised states do not vary: the constant one."""
    model = tpt.build("transformer-tiny", d_model=32)
    weight, _ = model.encoder[1].self_attention.maps()["value"]
    weight.view(4, 8, 32)[1] = 1.0  # LayerNorm makes the sum of a state 0
    found = information(model, sample)
    r2 = found.states[0].held_out.r2
    assert abs(r2[1]) < 0.05
    assert (np.delete(r2, 1) > 0.3).all()


def test_the_whole_analysis_is_written_and_drawn(sample, tmp_path):
    models = {}
    for preset in ("tp-transformer-tiny", "transformer-tiny"):
        torch.manual_seed(0)
        models[preset] = tpt.build(preset, d_model=32)
    models["transformer-tiny"].save(tmp_path / "transformer-tiny")
    own, against = models["tp-transformer-tiny"], tmp_path / "transformer-tiny"
    found = information(own, sample, seed=3, against=against)
    assert [one.kind for one in found.models] == ["tp-transformer", "transformer"]
    assert found.beside.context.model["name"] == "transformer-tiny"
    other = information(models["transformer-tiny"], sample, seed=3)
    assert str(found.beside.values()) == str(other.values())
    files = found.save(tmp_path)
    assert [file.suffix for file in files] == [".json", ".svg", ".pdf", ".png"]
    values = json.loads(files[0].read_text())
    assert values["paper_mse"] == RECONSTRUCTION_ERROR["tp-transformer"] == 0.017
    assert values["beside"][0]["paper_mse"] == 0.009
    protocol = values["states"]["input"]["paper_protocol"]
    assert [one["n"] for one in protocol.values()] == [100, 56]
    assert protocol["positions"]["mse_interval"][0] < protocol["positions"]["average_mse"]
    assert values["states"]["output"]["held_out"]["average_r2"] < 1
    assert any("not that it is there" in line for line in values["summary"])
    assert len(replace(found, beside=None).save(tmp_path / "one")) == 4


def test_the_same_seed_gives_the_same_numbers(sample):
    model = tpt.build("tp-transformer-tiny", d_model=32)
    values = [information(model, sample, seed=seed).to_json() for seed in (1, 1, 2)]
    assert [one["seed"] for one in values] == [1, 1, 2]
    found = [str(one["states"]) for one in values]
    assert found[0] == found[1] != found[2]


def test_both_readings_of_the_papers_samples_are_reported(sample):
    """100 positions, or 100 problems with all their positions."""
    model = tpt.build("tp-transformer-tiny", d_model=32)
    found = information(model, sample, samples=40)
    cells = {row[0]: row[1] for row in found.tables()[0].rows}
    for state, line in zip(found.states, found.summary()[::2], strict=True):
        positions, problems = state.readings
        assert (positions.reading, positions.n, positions.n_positions) == ("positions", 40, 40)
        assert (problems.reading, problems.n) == ("problems", 40)
        lengths = [len(text) + 2 for text in TEXTS]
        assert problems.n_positions == pytest.approx(40 * np.mean(lengths), rel=0.01)
        # Fewer positions are fitted more closely, whatever they hold.
        assert positions.mse.mean() < problems.mse.mean()
        assert positions.expected_r2 > 5 * problems.expected_r2
        for one in state.readings:
            low, high = one.mse_interval
            assert low < one.mse.mean() < high
            error = f"{one.mse.mean():.3f}\n{low:.3f} to {high:.3f}"
            assert cells[f"{state.name}, {one.n} {one.reading}"] == error
        assert "leaves open" in line


@pytest.mark.parametrize("own", [0.0, 1.0])
@pytest.mark.parametrize(("n_questions", "n"), [(128, 100), (60, 50)])
def test_the_interval_over_draws_holds_other_draws(n_questions, n, own):
    """Of 4,000 questions, whose states may have much in common, only some are there to draw from.

    The interval must hold 95% of the draws from all of them.
    """
    rng = np.random.default_rng(6)
    n_all, each = 4000, 6
    common = own * rng.standard_normal((n_all, 1, 6))
    states = (common + rng.standard_normal((n_all, each, 6))).reshape(-1, 6)
    values = states[:, None, :2] + 0.3 * rng.standard_normal((len(states), 1, 2))
    covered = {"positions": [], "problems": []}
    for way in (Draws.of_positions, Draws.of_problems):
        others = [
            analysis._fitted_error(values[one, 0], states[one])
            for one in way(questions_of(n_all, each), n, rng).positions
        ]
        for _ in range(25):
            some = rng.permutation(n_all)[:n_questions]
            here = (some[:, None] * each + np.arange(each)).ravel()
            draws = way(questions_of(n_questions, each), n, rng)
            low, high = analysis.in_sample(values[here], states[here], draws).mse_interval
            covered[draws.reading].append(np.mean([low <= error <= high for error in others]))
    for found in covered.values():
        assert 0.9 < np.mean(found) < 0.985


def test_a_few_questions_have_scores_but_no_intervals(tmp_path):
    model, sample = tpt.build("tp-transformer-tiny", d_model=32), sample_of(TEXTS[:4])
    found = information(model, sample)
    for state in found.states:
        assert state.held_out.average_interval is None
        assert state.held_out.r2_intervals is None
    rows = {row[0]: row for row in found.tables()[0].rows}
    assert rows["input, 4 problems"][1].endswith("\n-")
    assert rows["input, held out"][2].endswith("\n-")
    assert "fewer than 10 questions" in found.tables()[0].note
    values = json.loads(found.save(tmp_path)[0].read_text())
    assert values["states"]["input"]["held_out"]["r2_intervals"] is None
    enough = information(model, sample_of(TEXTS[:10]))
    (row,) = (row for row in enough.tables()[0].rows if row[0] == "input, held out")
    assert row[2].endswith("\n{:.3f} to {:.3f}".format(*enough.states[0].held_out.average_interval))


def test_one_question_has_none_to_hold_out(tmp_path):
    model, sample = tpt.build("tp-transformer-tiny", d_model=32), sample_of(("1 + 1?",))
    found = information(model, sample)
    assert found.states[0].held_out is None
    by_positions, by_problems = found.states[0].readings
    assert by_positions.n == by_problems.n_positions == 8
    assert by_problems.n == 1
    assert "nothing can be held out" in " ".join(found.summary())
    files = found.save(tmp_path)
    values = json.loads(files[0].read_text())
    assert values["states"]["output"]["held_out"] is None
    assert "single question" in values["states"]["output"]["held_out_missing"]


def test_what_cannot_be_analysed_is_refused(sample):
    model = tpt.build("tp-transformer-tiny", d_model=32)
    with pytest.raises(UserError, match="layers 0 to 1"):
        information(model, sample, layer=2)
    with pytest.raises(UserError, match="at least 3"):
        information(model, sample, samples=2)
    with torch.no_grad():
        model.encoder[0].output_norm.weight.zero_()
    with pytest.raises(UserError, match="same at all positions"):
        information(model, sample)
