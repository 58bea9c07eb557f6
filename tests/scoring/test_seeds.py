"""Results of several seeds: grouped, averaged, tested over seeds."""

import json
import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_ind

from tp_transformer.cli import main
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.report.comparison import ONE_SEED, Comparison
from tp_transformer.scoring.compare import question_pairs, seed_groups, seed_scores, seed_tests
from tp_transformer.scoring.results import ModuleScore, Results, SplitScore
from tp_transformer.scoring.statistics import welch

MODULES = ("numbers__gcd", "numbers__place_value")


def result(name, seed, right, recipe="a"):
    """Results with so many of 200 answers right in each module."""
    verdicts = np.arange(200) < right
    score = ModuleScore(verdicts=verdicts, loss=0.5, n_tokens=600, sha256="questions")
    training = {} if seed is None else {"seed": seed, "recipe_sha256": recipe}
    return Results(
        model={"name": name, "n_parameters": 1000, "step": 10, **training},
        data={"held_out": 0, "task": MATHEMATICS.to_json()}, choice={}, made={},
        splits={"interpolate": SplitScore(dict.fromkeys(MODULES, score))}, near_ties=[],
    )  # fmt: skip


TP = [result(f"tp/seed-{seed}", seed, right) for seed, right in enumerate((180, 184, 176))]
PLAIN = [result(f"plain/seed-{seed}", seed, 160 + seed, "b") for seed in range(3)]


def test_runs_that_differ_only_in_the_seed_are_one_group():
    groups = seed_groups([TP[0], PLAIN[0], *TP[1:], *PLAIN[1:], result("old", None, 100)])
    assert [(group.name, group.seeds) for group in groups] == [
        ("tp", (0, 1, 2)),
        ("plain", (0, 1, 2)),
        ("old", ()),
    ]
    twice = seed_groups([TP[0], replace(TP[0]), TP[1]])  # the same seed is not a further one
    assert [len(group.results) for group in twice] == [2, 1]


def test_mean_and_spread():
    (score,) = seed_scores(seed_groups(TP)[0])
    accuracies = [0.9, 0.92, 0.88]
    assert score.mean == pytest.approx(0.9)
    assert score.spread == pytest.approx(statistics.stdev(accuracies))
    assert score.range == (0.88, 0.92)
    assert seed_scores(seed_groups(TP[:1])[0]) == []


def test_over_seeds_the_test_is_welchs():
    first, second = seed_groups([*TP, *PLAIN])
    ((test,),) = seed_tests(first, [second])
    expected = ttest_ind([0.9, 0.92, 0.88], [0.8, 0.805, 0.81], equal_var=False)
    assert test.p == pytest.approx(expected.pvalue)
    assert test.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert test.difference == pytest.approx(0.095)
    assert seed_tests(first, seed_groups(PLAIN[:1])) == [[]]  # one seed: nothing to test
    assert welch([0.5, 0.5], [0.7, 0.7]) is None


def test_questions_are_paired_for_single_models_only():
    assert question_pairs([*TP, *PLAIN]) == []
    ((first, other, found),) = question_pairs([TP[0], PLAIN[0]])
    assert (first.name, other.name, len(found)) == ("tp/seed-0", "plain/seed-0", 1)


def test_the_output_says_how_many_seeds_there_are(tmp_path, capsys):
    files = []
    for number, one in enumerate([*TP, *PLAIN]):
        files.append(str(tmp_path / f"{number}.json"))
        one.save(files[-1])
    main(["compare", *files])
    text = " ".join(capsys.readouterr().out.split())
    assert "tp, Interpolation: 90.00% on average over 3 seeds (0, 1, 2), standard deviation" in text
    assert "by Welch's t-test over 3 and 3 seeds" in text
    assert "on the same questions" not in text
    assert ONE_SEED not in text
    main(["compare", files[0], files[3]])
    text = " ".join(capsys.readouterr().out.split())
    assert ONE_SEED in text
    assert "on the same questions" in text
    main(["compare", *files[:4]])
    text = " ".join(capsys.readouterr().out.split())
    assert "plain/seed-0: one seed; the variation between its seeds is unknown." in text
    assert "tp minus plain/seed-0: no test over seeds, which needs two seeds of each." in text


def test_every_format_has_the_seeds():
    both = Comparison(*TP, *PLAIN)
    line = next(line for line in both.differences if "Welch" in line)
    assert f"- {line}" in both.to_markdown()
    assert "Welch" in both.to_latex()
    rows = both.frame()
    tested = rows[rows.kind == "seeds difference"].iloc[0]
    assert (tested.model, tested.versus, tested.seeds) == ("tp", "plain", 3)
    assert tested.p < 0.05
    assert rows[rows.kind == "seeds"].spread.iloc[0] == pytest.approx(0.02)


def test_results_know_their_seed_and_recipe(tmp_path):
    from runs import config, make_store
    from tp_transformer import train
    from tp_transformer.model.checkpoint import describe, load

    store = make_store(tmp_path / "data")
    described = []
    for seed, rate in ((0, 0.01), (1, 0.01), (1, 0.02)):
        run = tmp_path / f"rate-{rate}" / f"seed-{seed}"
        settings = config(training__steps=1, training__seed=seed, optim__learning_rate=rate)
        train(settings, store, run, quiet=True)
        described.append(describe(load(run), run))
    assert [one["seed"] for one in described] == [0, 1, 1]
    recipes = [one["recipe_sha256"] for one in described]
    assert recipes[0] == recipes[1] != recipes[2]
    assert described[0]["name"] == "rate-0.01/seed-0"
    assert json.loads(json.dumps(described)) == described
