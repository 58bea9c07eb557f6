"""Reversed and unreversed sides: each is found where it is planted, neither in noise."""

from dataclasses import replace

import numpy as np
import pytest

from planted import quotients, sample
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.roles import reversal
from tp_transformer.interpret.roles.positions import Positions
from tp_transformer.interpret.roles.reversal import (
    HeadTransfer,
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


def found_with(probe, initial=0.5, reader=0.1):
    clusters = told(0.5)
    head = HeadTransfer(layer=0, head=1, probe=probe, clusters=clusters)
    worse = replace(head, head=0, probe=told(0.99, accuracy=0.6))  # is not looked at
    other = HeadTransfer(layer=1, head=0, probe=told(0.1), clusters=told(0.95))
    return Reversal(
        n_agreeing=100,
        n_disagreeing=50,
        n_questions=20,
        obstacle=None,
        heads=(worse, head, other),
        readers={0: told(reader)},
        initial=((HeadTransfer(layer=0, head=0, probe=told(initial), clusters=clusters),),),
    )


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (found_with(told(0.9)), reversal.REVERSED),
        (found_with(told(0.9), initial=0.88), reversal.LIKE_CONTROLS),
        (found_with(told(0.9), reader=0.88), reversal.LIKE_CONTROLS),
        (found_with(told(0.53)), reversal.UNCLEAR),
        (found_with(told(0.1)), reversal.UNREVERSED),
    ],
)
def test_each_layer_has_a_verdict(found, verdict):
    probe, clusters, other_probe, other_clusters = found.layers
    assert (probe.layer, probe.head, probe.kind, probe.verdict) == (0, 1, "probe", verdict)
    assert clusters.verdict == reversal.UNCLEAR
    assert (other_probe.layer, other_probe.verdict) == (1, reversal.UNREVERSED)
    assert f"{verdict}: probe of head 0.1" in found.summary()
    if max(control.reversed_share for control in found.readers.values()) < 0.5:
        assert other_clusters.verdict == reversal.REVERSED  # compared with clusters, not probes
    (table,) = found.tables()
    share = f"{probe.transfer.reversed_share:.0%}"
    assert table.rows[0][:3] == ("probe, head 0.1", f"{probe.transfer.accuracy:.0%}", share)
    assert [row[0] for row in table.rows[1:]] == [
        f"clusters, head 0.{clusters.head}",
        "probe, head 1.0",
        "clusters, head 1.0",
        "probe, untrained model 1",
        "clusters, untrained model 1",
        "text, 0 characters on each side",
    ]
    assert [one["verdict"] for one in found.values()["layers"]] == [
        one.verdict for one in found.layers
    ]
