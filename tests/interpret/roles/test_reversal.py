"""Reversed and unreversed sides: each is found where it is planted, neither in noise."""

import numpy as np
import pytest

from planted import quotients, sample
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.roles import reversal
from tp_transformer.interpret.roles.probes import Positions
from tp_transformer.interpret.roles.reversal import (
    LayerTransfer,
    ModelTransfer,
    Reversal,
    Sides,
    Transfer,
    transfer,
)

POSITIONS = Positions.of(sample(80))
SIDES = Sides.of(POSITIONS)


def planted(labels, rng, noise=0.3):
    """Vectors of all positions that say which label they have, and clusters that do."""
    vectors = noise * rng.standard_normal((len(POSITIONS.characters), 4))
    vectors[SIDES.position, labels] += 1
    return vectors, np.eye(4)[vectors.argmax(axis=1)]


def test_the_labels_disagree_in_a_denominator_that_is_a_fraction():
    questions = ("(1/2)/(3/4)", "5/6", "7", "Is 8 prime?")
    sides = Sides.of(Positions.of(Sample(questions=questions, answers=("1",) * 4, origin="")))
    assert sides.position.tolist() == [2, 4, 8, 10, 14, 16]
    assert sides.agree.tolist() == [True, True, False, False, True, True]
    assert sides.reversed.tolist() == [0, 1, 1, 0, 0, 1]
    assert sides.unreversed.tolist() == [0, 1, 0, 1, 0, 1]
    assert "only 2 questions have a numerator" in sides.obstacle
    assert SIDES.obstacle is None


@pytest.mark.parametrize("name", ["reversed", "unreversed"])
def test_what_is_planted_is_told_from_its_opposite(name):
    vectors, clusters = planted(getattr(SIDES, name), np.random.default_rng(0))
    for found in (
        transfer(vectors, SIDES, seed=0),
        transfer(clusters, SIDES, 0, reversal.by_cluster),
    ):
        assert found.accuracy > 0.95
        share = found.reversed_share if name == "reversed" else 1 - found.reversed_share
        assert share > 0.95
        low, high = found.interval
        assert low <= found.reversed_share <= high


def test_neither_is_found_in_noise_more_often_than_the_interval_says():
    outside = 0
    shares = []
    for seed in range(60):
        vectors = np.random.default_rng(seed).standard_normal((len(POSITIONS.characters), 6))
        found = transfer(vectors, SIDES, seed)
        shares.append(found.reversed_share)
        outside += not found.interval[0] <= 0.5 <= found.interval[1]
    assert abs(np.mean(shares) - 0.5) < 0.02
    assert outside <= 8  # 3 are expected, more than 8 in 1 of 200 cases


def test_a_reader_that_always_says_the_same_gets_half():
    # A vector that knows nothing: the commoner side where labels agree is said everywhere.
    found = transfer(np.ones((len(POSITIONS.characters), 2)), SIDES, seed=0)
    assert found.reversed_share == found.accuracy == 0.5


def test_a_reader_of_neighbours_takes_the_unreversed_side():
    """What follows a "/" is a denominator where the labels agree, and so elsewhere."""
    positions = Positions.of(quotients(80))
    found = transfer(positions.character_features(2), Sides.of(positions), seed=0)
    assert found.accuracy > 0.95
    assert found.interval[1] < 0.2


def told(share, reach=0.05, accuracy=0.9):
    return Transfer(
        accuracy=accuracy, reversed_share=share, interval=(share - reach, min(1, share + reach))
    )


def layer_of(share, kind="probe", index=0):
    return LayerTransfer(
        layer=index, kind=kind, transfer=told(share), n_heads=8, n_reversed=5, n_unreversed=1
    )


def found_with(share, initial=0.5, reader=0.1):
    """A model of two layers, and an untrained one whose layers differ."""
    layers = layer_of(share), layer_of(0.5, "clusters"), layer_of(0.1, "probe", 1)
    untrained = layer_of(0.3), layer_of(initial, "probe", 1), layer_of(0.5, "clusters")
    return Reversal(
        n_agreeing=100,
        n_disagreeing=50,
        n_questions=20,
        obstacle=None,
        model=ModelTransfer(layers=(*layers, layer_of(0.95, "clusters", 1))),
        readers={0: told(reader)},
        initial=(ModelTransfer(layers=untrained),),
    )


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (found_with(0.9), reversal.REVERSED),
        (found_with(0.9, initial=0.88), reversal.LIKE_CONTROLS),
        (found_with(0.9, reader=0.88), reversal.LIKE_CONTROLS),
        (found_with(0.53), reversal.UNCLEAR),
        (found_with(0.1), reversal.UNREVERSED),
    ],
)
def test_each_layer_has_a_verdict(found, verdict):
    probe, clusters, other_probe, other_clusters = found.model.layers
    assert found.verdict(probe) == verdict
    assert found.verdict(clusters) == reversal.UNCLEAR
    assert found.verdict(other_probe) == reversal.UNREVERSED
    assert f"{verdict}: probe, layer 0 (5 of 8 heads)" in found.summary()
    if max(control.reversed_share for control in found.readers.values()) < 0.5:
        assert found.verdict(other_clusters) == reversal.REVERSED  # compared with clusters
    (table,) = found.tables()
    share = f"{probe.transfer.reversed_share:.0%}"
    assert table.rows[0][:3] == ("probe, layer 0", f"{probe.transfer.accuracy:.0%}", share)
    assert [row[0] for row in table.rows[1:]] == [
        "clusters, layer 0",
        "probe, layer 1",
        "clusters, layer 1",
        "probe, layer 1 of untrained model 1",
        "clusters, layer 0 of untrained model 1",
        "text, 0 characters on each side",
    ]
    assert [layer["verdict"] for layer in found.values()["model"]["layers"]] == [
        found.verdict(layer) for layer in found.model.layers
    ]


def test_a_layer_is_the_mean_of_its_heads():
    rng = np.random.default_rng(0)
    vectors = {
        (layer, head): planted(getattr(SIDES, name), rng)
        for layer, names in enumerate([("reversed", "unreversed", "reversed"), ("unreversed",) * 3])
        for head, name in enumerate(names)
    }
    found = reversal.model_transfer(
        {place: own for place, (own, _) in vectors.items()},
        {place: own for place, (_, own) in vectors.items()},
        SIDES,
        seed=0,
    )
    assert [(head.layer, head.head) for head in found.heads] == list(vectors)
    for head, (own, clusters) in zip(found.heads, vectors.values(), strict=True):
        assert head.probe == transfer(own, SIDES, 0)
        assert head.clusters == transfer(clusters, SIDES, 0, reversal.by_cluster)
    mixed, _, unreversed, _ = found.layers
    assert (mixed.layer, mixed.n_heads, mixed.n_reversed, mixed.n_unreversed) == (0, 3, 2, 1)
    assert (unreversed.layer, unreversed.n_reversed, unreversed.n_unreversed) == (1, 0, 3)
    shares = [head.probe.reversed_share for head in found.heads[:3]]
    assert mixed.transfer.reversed_share == pytest.approx(np.mean(shares))
    low, high = mixed.transfer.interval
    assert low <= mixed.transfer.reversed_share <= high
    assert found.most_reversed("probe") == mixed
