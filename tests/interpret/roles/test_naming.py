"""Names: given where a cluster is clear, and only there."""

import numpy as np

from planted import sample
from tp_transformer.interpret.roles import clusters as naming
from tp_transformer.interpret.roles.probes import Positions

POSITIONS = Positions.of(sample(60))
SAID = naming.statements(POSITIONS.characters, POSITIONS.labels)


def named(clusters, n_clusters):
    return naming.names(clusters.astype(np.int64), n_clusters, SAID, POSITIONS.question)


def test_statements_are_true():
    assert np.array_equal(SAID["'/'"], np.array(list(POSITIONS.characters)) == "/")
    assert SAID["start token"].sum() == SAID["end token"].sum() == 60
    assert not (SAID["denominator"] & SAID["numerator"]).any()
    assert (SAID["in a number"] >= SAID["ones digit"]).all()
    assert SAID["in division"].sum() > 0


def test_a_planted_role_gets_its_name():
    member = SAID["ones digit"] & SAID["denominator"]
    none, name = named(member, 2)
    assert set(name.statements) == {"ones digit", "denominator"}
    assert name.purity == 1
    assert name.n_positions == member.sum()
    # What all other positions have in common is little.
    assert none is None or "ones digit" not in none.statements


def test_a_role_with_some_noise_keeps_its_name():
    rng = np.random.default_rng(0)
    member = SAID["denominator"] ^ (rng.random(len(SAID["denominator"])) < 0.02)
    name = named(member, 2)[1]
    assert "denominator" in name.statements
    assert naming.PURITY <= name.purity < 1


def test_a_role_that_is_half_something_else_gets_no_name():
    # Surely more denominators than elsewhere, but not nearly all.
    member = SAID["denominator"] | SAID["'/'"] | SAID["'('"]
    share = SAID["denominator"][member].mean()
    assert SAID["denominator"].mean() + 0.2 < share < naming.PURITY
    assert named(member, 2)[1] is None


def test_chance_gets_no_names():
    for seed in range(10):
        clusters = np.random.default_rng(seed).integers(20, size=len(POSITIONS.characters))
        assert named(clusters, 20) == (None,) * 20


def test_chance_among_digits_is_only_named_as_digits():
    for seed in range(10):
        clusters = np.random.default_rng(seed).integers(5, size=len(POSITIONS.characters))
        clusters[~SAID["in a number"]] = 5
        for name in named(clusters, 6)[:5]:
            assert name.statements == ("in a number",)


def test_small_clusters_and_clusters_of_few_questions_stay_unnamed():
    member = SAID["start token"].copy()
    assert str(named(member, 2)[1]) == "start token"
    member[np.flatnonzero(member)[naming.FEWEST_QUESTIONS - 1 :]] = False
    assert named(member, 2)[1] is None
    one_question = (POSITIONS.question == 0) & SAID["in a number"]
    assert named(one_question, 2)[1] is None
    assert named(np.zeros(len(member)), 3)[1:] == (None, None)
