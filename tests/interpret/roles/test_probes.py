"""Clusters and probes: planted labels are found, and nothing is found in noise."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import normalized_mutual_info_score

from planted import sample
from tp_transformer.interpret.roles import probes
from tp_transformer.interpret.roles.probes import Labelled, Positions

N_QUESTIONS = 40


def runs(rng, n, length, n_values):
    """Values that stay the same for a few positions, as those of a number's characters do."""
    return np.repeat(rng.integers(n_values, size=-(-n // length)), length)[:n]


def labelled(labels, per_question=20):
    question = np.arange(len(labels)) // per_question
    return Labelled.of("side", [f"label {one}" for one in labels], question)


def test_the_information_is_the_textbooks():
    rng = np.random.default_rng(0)
    for n_first, n_second in ((2, 2), (20, 3), (1, 4), (5, 5)):
        first, second = rng.integers(n_first, size=300), rng.integers(n_second, size=300)
        second[:100] = first[:100] % n_second
        expected = normalized_mutual_info_score(first, second)
        table = probes.contingency(first, second, n_first, n_second)
        found = probes.normalised_information(table)
        assert found == pytest.approx(expected, abs=1e-12)


def test_clusters_that_are_the_labels_are_found():
    truth = np.random.default_rng(0).integers(3, size=20 * N_QUESTIONS)
    found = probes.information((truth + 1) % 3, labelled(truth), 3, seed=0)
    assert found.score == pytest.approx(1)
    assert found.baseline < found.baseline_interval[1] < 0.05


@pytest.mark.parametrize("name", ["side", "argument", "depth", "digit place"])
def test_clusters_that_have_nothing_to_do_with_labels_are_not_found(name):
    """Clusters that stay the same for a while, as smooth vectors make them, on real questions."""
    positions = Positions.of(sample(60))
    label = Labelled.of(name, positions.labels[name], positions.question)
    found = []
    for seed in range(60):
        clusters = runs(np.random.default_rng(seed), len(positions.characters), 5, 20)
        found.append(probes.information(clusters, label, 20, seed))
    # The upper end of the baseline leaves out 2.5% of permuted labels, but more of these clusters.
    assert np.mean([one.score > one.baseline_interval[1] for one in found]) < 0.12
    assert 0.2 < np.mean([one.score > one.baseline for one in found]) < 0.8


def test_labels_are_permuted_number_by_number():
    question = np.repeat(np.arange(12), 4)
    labels = ["a", "a", None, "b"] * 6 + ["b", "b", None, "a"] * 6
    label = Labelled.of("side", labels, question)
    assert label.number.tolist() == [i for one in range(0, 24, 2) for i in (one, one, one + 1)]
    permuted = label.permuted(np.random.default_rng(0))
    assert np.array_equal(
        permuted[0::3], permuted[1::3]
    )  # the characters of a number keep together
    assert not np.array_equal(permuted, label.label)
    places = Labelled.of("digit place", ["tens", "ones", None, "ones"] * 12, question)
    permuted = places.permuted(np.random.default_rng(0))
    assert (np.bincount(permuted) == np.bincount(places.label)).all()
    assert (np.sort(permuted.reshape(12, 3)[:, :2]) == [0, 1]).all()
    assert 2 < (permuted != places.label).sum() / 2 < 10


def test_the_interval_of_the_information():
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=20 * N_QUESTIONS)
    clusters = np.where(rng.random(len(truth)) < 0.7, truth, rng.integers(3, size=len(truth)))
    found = probes.information(clusters, labelled(truth), 3, seed=0)
    low, high = found.interval
    assert found.baseline_interval[1] < low < found.score < high < 0.6
    assert high - low < 0.25


def test_the_probe_is_discriminant_analysis():
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=500)
    vectors = rng.normal(size=(500, 6)) * np.arange(1, 7) + np.eye(6)[labels]
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(vectors, labels)
    ours = probes.Probe(vectors, labels, 4)
    assert np.mean(ours(vectors) == theirs.predict(vectors)) > 0.98


def test_planted_labels_are_told_from_vectors_and_not_from_noise():
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=20 * N_QUESTIONS)
    noise = rng.normal(size=(len(truth), 8))
    # Numbers of one character: labels permuted within longer numbers keep some of the truth.
    alone = replace(labelled(truth), number=np.arange(len(truth)))
    told = probes.probe(noise + 4 * np.eye(8)[truth], alone, seed=0)
    assert told.accuracy > 0.95
    assert told.interval[0] > told.majority
    assert told.baseline < 0.45
    untold = probes.probe(noise, labelled(truth), seed=0)
    assert untold.interval[0] < 1 / 3 + 0.03
    assert abs(untold.accuracy - 1 / 3) < 0.06


def test_a_probe_is_never_judged_on_a_question_it_has_seen():
    # Vectors that name the question, and labels that are the question's: only a probe that has
    # seen the question can know them.
    rng = np.random.default_rng(0)
    truth = np.repeat(rng.integers(2, size=N_QUESTIONS), 20)
    vectors = np.repeat(np.eye(N_QUESTIONS), 20, axis=0)
    found = probes.probe(vectors, labelled(truth), seed=0)
    assert found.accuracy < 0.7
    seen = probes.Probe(vectors, truth, 2)(vectors)
    assert np.mean(seen == truth) == 1
    question = np.arange(len(truth)) // 20
    fold = probes.folds(question, seed=3)
    assert len({(one, other) for one, other in zip(question, fold, strict=True)}) == N_QUESTIONS
    assert set(fold) == set(range(probes.FOLDS))


def test_constant_features_and_single_classes_do_no_harm():
    truth = np.random.default_rng(0).integers(2, size=200)
    found = probes.probe(np.ones((200, 3)), labelled(truth), seed=0)
    assert 0.3 < found.accuracy < 0.7
    only = probes.Probe(np.ones((5, 2)), np.zeros(5, np.int64), 3)
    assert set(only(np.ones((4, 2)))) == {0}


def test_rare_labels_are_left_out_and_too_few_are_said():
    question = np.arange(200) // 10
    labels = ["common" if i % 2 else None for i in range(200)]
    labels[:4] = ["rare"] * 4
    found = Labelled.of("side", labels, question)
    assert found.classes == ("common",)
    assert found.n_left_out == 4
    assert set(found.label) == {0}
    assert [labels[at] for at in found.position] == ["common"] * len(found.position)
    assert "fewer than two" in found.obstacle
    none = Labelled.of("side", [None] * 5, np.zeros(5, np.int64))
    assert none.classes == ()
    assert none.obstacle


def test_the_interval_is_over_questions():
    # Within a question all are right or all wrong: a hundred positions say no more than ten do.
    right = np.repeat([1.0, 0.0] * 10, 10)
    question = np.arange(len(right)) // 10
    low, high = probes.question_bootstrap(right, question, seed=0)
    assert low < 0.35 < 0.65 < high
    low, high = probes.question_bootstrap(right, np.arange(len(right)), seed=0)
    assert 0.4 < low < high < 0.6
    assert probes.question_bootstrap(np.ones(3), np.zeros(3, np.int64), seed=0) == (0, 1)


@pytest.mark.parametrize(
    ("accuracies", "tried"),
    [
        ({}, [0, 2, 4, 6]),  # three that are no better
        ({2: 0.7, 4: 0.7}, [0, 2, 4, 6, 8]),
        ({6: 0.9}, [0, 2, 4, 6, 8, 10, 12]),  # a plateau before is passed over
        ({reach: reach / 100 + 0.5 for reach in range(99)}, [*range(0, 21, 2)]),  # all of the text
    ],
)
def test_readers_of_the_text_widen_until_they_stop_improving(accuracies, tried):
    def score(reach):
        accuracy = accuracies.get(reach, 0.5)
        return probes.Probed(accuracy=accuracy, interval=(0, 1), majority=0.5, baseline=0.5)

    assert list(probes.widen(score, longest=21)) == tried
