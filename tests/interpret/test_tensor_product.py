"""Tensor products of known rank, aligned with the coordinates or turned away from them."""

import json
from importlib import import_module

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer import UserError
from tp_transformer.interpret import tensor_product
from tp_transformer.interpret.core.record import point
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.tensor_product import (
    Products,
    align,
    measure,
)

analysis = import_module("tp_transformer.interpret.tensor_product")

D = 6
BOTH = pytest.mark.parametrize("centred", [True, False])


def rng():
    return np.random.default_rng(0)


def diagonal(n, chance, d=D):
    """Fillers and roles that are both multiples of one axis: v (x) r is on the diagonal."""
    axes = np.eye(d)[chance.integers(d, size=n)]
    sizes = 1 + chance.random((2, n, 1)) + np.arange(d) / d
    return axes * sizes[0] * chance.choice([-1, 1], (n, 1)), axes * sizes[1]


def shares_of(filler, role, centred=True, seed=0):
    half = len(filler) // 2
    parts = [
        Products(filler=filler[rows], role=role[rows], centred=centred)
        for rows in (slice(half), slice(half, None))
    ]
    return measure(*parts, np.arange(len(filler) - half) // 10, seed)


@BOTH
@pytest.mark.parametrize("n", [7, 40])  # fewer and more than the 9 numbers of a tensor
def test_variances_are_those_of_the_tensors_written_out(centred, n):
    chance = rng()
    filler, role = chance.standard_normal((2, n, 3)) + 0.5
    products = Products(filler=filler, role=role, centred=centred)
    tensors = np.einsum("ni,nj->nij", filler, role)
    if centred:
        tensors -= tensors.mean(axis=0)
    np.testing.assert_allclose(products.totals, np.square(tensors).sum(axis=(1, 2)))
    kept = np.square(tensors.diagonal(axis1=1, axis2=2)).sum(axis=1)
    np.testing.assert_allclose(products.diagonals(), kept)
    _, sizes, right = np.linalg.svd(tensors.reshape(n, 9))
    values, directions = products.principal
    np.testing.assert_allclose(values, sizes[:3] ** 2)
    np.testing.assert_allclose(np.abs((directions.reshape(3, 9) * right[:3]).sum(axis=1)), 1)
    np.testing.assert_allclose(products.along(directions).sum(), values.sum())
    axes = np.einsum("ci,cj->cij", np.eye(3), np.eye(3))
    np.testing.assert_allclose(products.along(axes), kept)


@BOTH
def test_aligned_vectors_are_kept_whole(centred):
    found = shares_of(*diagonal(400, rng()), centred)
    assert found.hadamard == pytest.approx(1)
    assert found.aligned == pytest.approx(1)
    assert found.optimum == pytest.approx(1)
    assert found.ceiling == pytest.approx(1)
    assert found.random < 0.5
    assert found.is_beyond_random


@BOTH
def test_a_rotation_hides_them_from_the_diagonal_and_is_found(centred):
    chance = rng()
    filler, role = diagonal(400, chance)
    turns = [np.linalg.qr(chance.standard_normal((D, D)))[0] for _ in range(2)]
    found = shares_of(filler @ turns[0].T, role @ turns[1].T, centred)
    assert found.hadamard < 0.4
    assert found.aligned == pytest.approx(1, abs=1e-3)
    assert found.optimum == pytest.approx(1)
    assert not found.is_beyond_random


def test_rotations_change_the_hadamard_share_alone():
    chance = rng()
    filler, role = chance.standard_normal((2, 600, D)) * np.arange(1, D + 1)
    turns = [np.linalg.qr(chance.standard_normal((D, D)))[0] for _ in range(2)]
    before, after = shares_of(filler, role), shares_of(filler @ turns[0], role @ turns[1])
    assert abs(before.hadamard - after.hadamard) > 0.05
    assert before.optimum == pytest.approx(after.optimum)
    assert before.ceiling == pytest.approx(after.ceiling)
    assert before.aligned == pytest.approx(after.aligned, abs=0.02)


@pytest.mark.parametrize("rank", [1, 4, D])
def test_tensors_of_low_rank_lose_nothing_to_the_optimum(rank):
    chance = rng()
    directions = chance.standard_normal((2, rank, D))
    which = chance.integers(rank, size=400)
    filler = directions[0][which] * chance.standard_normal((400, 1))
    found = shares_of(filler, directions[1][which])
    assert found.optimum == pytest.approx(1)
    assert found.ceiling == pytest.approx(1)
    assert found.hadamard < found.aligned <= 1


def test_tensors_of_higher_rank_lose_what_is_beyond_it():
    """Equal variance in 2 d_head product directions, of which d_head directions keep a half."""
    chance = rng()
    axes = np.eye(D)
    pairs = [(c, c) for c in range(D)] + [(c, (c + 1) % D) for c in range(D)]
    which = np.arange(1200) % len(pairs)
    signs = chance.choice([-1.0, 1.0], (1200, 1))
    filler = axes[[pairs[one][0] for one in which]] * signs
    found = shares_of(filler, axes[[pairs[one][1] for one in which]], centred=False)
    assert found.hadamard == pytest.approx(0.5)
    assert found.ceiling == pytest.approx(0.5, abs=0.01)
    assert found.optimum == pytest.approx(0.5, abs=0.01)


def test_random_vectors_keep_one_in_d_head_and_no_more_than_random_rotations():
    chance = rng()
    beyond = []
    for seed in range(8):
        filler, role = chance.standard_normal((2, 1000, D))
        found = shares_of(filler, role, seed=seed)
        assert found.hadamard == pytest.approx(1 / D, abs=0.03)
        assert found.random == pytest.approx(1 / D, abs=0.005)
        assert found.optimum < 0.26  # little above 1 / 6: there are no principal directions
        beyond.append(found.is_beyond_random)
    assert sum(beyond) <= 2


def test_the_ceiling_is_above_all_and_the_alignment_above_hadamard_where_it_was_fitted():
    chance = rng()
    for centred in (True, False):
        filler, role = chance.standard_normal((2, 60, D)) + 1
        products = Products(filler=filler, role=role, centred=centred)
        found = measure(products, products, np.arange(60) // 6)
        assert found.hadamard <= found.aligned <= found.ceiling
        assert found.optimum == pytest.approx(found.ceiling)
        low, high = found.hadamard_interval
        assert low < found.hadamard < high


@BOTH
def test_every_round_of_the_ascent_keeps_more(centred, monkeypatch):
    chance = rng()
    filler, role = chance.standard_normal((2, 200, D)) * np.arange(1, D + 1) + 0.5
    products = Products(filler=filler, role=role, centred=centred)
    shares = []
    for rounds in range(12):
        monkeypatch.setattr(analysis, "MOST_ROUNDS", rounds)
        turns = analysis._ascend(products, np.eye(D), np.eye(D))
        shares.append(products.rotated(*turns).share())
        for turn in turns:
            np.testing.assert_allclose(turn.T @ turn, np.eye(D), atol=1e-12)
    assert shares[0] == products.share()
    assert (np.diff(shares) > -1e-12).all()
    assert shares[-1] > shares[0] + 0.01


def test_random_rotations_are_orthogonal_and_favour_no_direction():
    chance = rng()
    drawn = np.stack([analysis._orthogonal(4, chance) for _ in range(3000)])
    np.testing.assert_allclose(
        drawn @ drawn.swapaxes(1, 2), np.broadcast_to(np.eye(4), drawn.shape), atol=1e-12
    )
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=0.04)
    np.testing.assert_allclose(np.square(drawn).mean(axis=0), 0.25, atol=0.03)


def test_alignment_survives_a_single_position():
    products = Products(filler=np.ones((1, 3)), role=np.ones((1, 3)), centred=False)
    assert products.rotated(*align(products, rng())).share() == pytest.approx(1)


SAMPLE = Sample(
    questions=tuple(f"What is {a}/{b}?" for a in range(2, 20, 3) for b in (3, 5, 12)),
    answers=("7",) * 18,
    origin="some fractions",
)


def test_the_whole_analysis_is_written_and_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "MOST_ROUNDS", 5)  # how good rotations are, others test
    model = tpt.build("tp-transformer-tiny", d_model=32)
    with torch.no_grad():  # what training could do to a head: roles that do not vary but for one
        weight, bias = model.encoder[1].self_attention.maps()["role"]
        weight.view(4, 8, 32)[2], bias.view(4, 8)[2] = 0, torch.eye(8)[3]
    result = tensor_product(model, SAMPLE)
    assert [(one.layer, one.head) for one in result.heads] == [
        (layer, head) for layer in (0, 1) for head in range(4)
    ]
    planted = result.heads[6].variance
    assert planted.ceiling == pytest.approx(1)  # filler times one axis: 8 dimensions in all
    assert max(one.variance.ceiling for draw in result.initial for one in draw) < 0.99
    assert result.is_held_out
    averages = [np.mean([one.variance.hadamard for one in draw]) for draw in result.initial]
    assert len(set(averages)) == analysis.INITIAL_DRAWS
    assert result.summary()[0].startswith("Encoder self-attention: in ")
    assert "; in 3 untrained models, in " in result.summary()[0]
    own, initial = result.tables()[0].rows
    mean = np.mean([one.variance.hadamard for one in result.heads])
    assert own[:2] == ("this model", f"{mean:.1%}")
    assert initial[:2] == ("3 untrained models", f"{min(averages):.1%} to {max(averages):.1%}")
    files = result.save(tmp_path)
    assert [file.suffix for file in files] == [".json", ".svg", ".pdf", ".png"]
    values = json.loads(files[0].read_text())
    assert values["expected_random"] == 1 / 8
    assert values["heads"][6]["variance"]["ceiling"] == pytest.approx(1)
    assert "nothing in the loss rewards variance" in " ".join(values["summary"])
    same = tensor_product(model, SAMPLE, layer=-1).to_json()
    assert str(same["heads"]) == str(result.to_json()["heads"][4:])


@pytest.mark.parametrize("where", ["decoder", "cross"])
def test_the_decoder_is_measured_at_the_positions_of_the_answers(where, tmp_path):
    sample = Sample(
        questions=SAMPLE.questions,
        answers=tuple(f"{number}/{number + 7}" for number in range(1, 19)),
        origin="other answers",
    )
    model = tpt.build("tp-transformer-tiny", d_model=32)
    with torch.no_grad():  # fillers along one axis, one role: nothing is off the diagonal
        attention = getattr(model.decoder[1], point(where, 1, "role").split(".")[2])
        for name in ("value", "role"):
            weight, bias = attention.maps()[name]
            weight.view(4, 8, 32)[2][1:], bias.view(4, 8)[2][:] = 0, 0
        weight.view(4, 8, 32)[2], bias.view(4, 8)[2] = 0, torch.eye(8)[0]
    result = tensor_product(model, sample, where=where, layer=-1)
    assert result.n_fitted + result.n_scored == sum(len(one) + 1 for one in sample.answers)
    shares = [one.variance.hadamard for one in result.heads]
    assert shares[2] == pytest.approx(1)
    assert max(shares[:2] + shares[3:]) < 0.9
    assert "ecoder" in result.summary()[0]
    files = result.save(tmp_path)
    assert files[0].name == f"tensor-product-{where}.json"
    with pytest.raises(UserError, match=r"where must be .*did you mean 'decoder'.*'decodr'"):
        tensor_product(model, sample, where="decodr")


def test_vectors_that_do_not_vary_are_refused():
    constant = Products(filler=np.ones((5, 3)), role=np.ones((5, 3)), centred=True)
    with pytest.raises(UserError, match="same at all positions"):
        measure(constant, constant, np.zeros(5, np.int64))


def test_one_question_is_fitted_and_scored_on_itself():
    model = tpt.build("tp-transformer-tiny", d_model=32, binding="convolution")
    sample = Sample(questions=("1 + 1?",), answers=("2",), origin="one question")
    result = tensor_product(model, sample, layer=0)
    assert not result.is_held_out
    assert result.heads[0].variance.hadamard_interval is None
    text = " ".join(result.summary())
    assert "a share has no interval" in text
    assert "binds by convolution" in text
    assert "With a single question" in text
