"""Damaged results and journals are read or refused in one line: no crash, no wrong verdict."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from fuzzing import mutate_bytes, mutate_json, tolerated, trials
from tp_transformer.report.comparison import Comparison
from tp_transformer.report.terminal import render_results
from tp_transformer.scoring.journal import OPEN, Journal
from tp_transformer.scoring.results import ModuleScore, Results, SplitScore

QUICK = pytest.param(200, 0, id="quick")


def slow(count):
    return pytest.param(count, 1, id="slow", marks=pytest.mark.slow)


def small_results(seed):
    """Results of two modules of each split, with every field that an evaluation fills."""
    rng = np.random.default_rng(seed)
    tie = {"split": "train", "module": "numbers__gcd", "row": 3, "right": True, "margin": 1e-4}

    def score(module):
        return ModuleScore(
            verdicts=rng.random(40) < 0.7, loss=0.5, n_tokens=120, sha256=module, near_ties=1,
            wrong={"sign": 3, "other": 4},
        )  # fmt: skip

    modules = {
        "train": ("numbers__gcd", "arithmetic__mul"),
        "interpolate": ("numbers__gcd", "arithmetic__mul"),
        "extrapolate": ("numbers__place_value_big", "arithmetic__add_or_sub_big"),
    }
    return Results(
        model={"name": f"model {seed}", "n_parameters": 49_178_112, "step": 700_000,
               "sha256": "0", "architecture": "transformer", "config": {"d_model": 512}},
        data={"name": "math", "kind": "generated", "sha256": {"train": "1"}, "held_out": 2048},
        choice={"modules": ["*"], "splits": None, "train_count": 1000, "seed": 0},
        made={"when": "today", "diagnosis": {"has_sympy": True, "n_out_of_time": 2}},
        splits={s: SplitScore({m: score(m) for m in names}) for s, names in modules.items()},
        near_ties=[tie],
        decoding={"n": 100, "other_verdict": [tie], "near_ties_among_them": 1},
    )  # fmt: skip


@pytest.mark.parametrize(("count", "seed"), [QUICK, slow(8_000)])
def test_damaged_results_are_shown_or_refused(tmp_path, count, seed):
    good, file = small_results(0), tmp_path / "r.json"
    document = json.loads(json.dumps(small_results(1).to_json()))
    n_read = 0
    for name, chance in trials(count, seed):
        file.write_bytes(mutate_json(document, chance))
        with tolerated(name):
            found = Results.read(file)
            n_read += 1
            console = Console(width=100, file=io.StringIO())
            render_results(found, console)
            for results in ([good, found], [found, good]):
                Comparison(*results).render(console)
                compared = Comparison(*results)
                for text in (compared.to_markdown(), compared.to_csv(), compared.to_latex()):
                    text.encode()
            found.save(tmp_path / "again.json")
    assert 0.1 * count < n_read < 0.9 * count  # some damages matter, some do not


@pytest.mark.parametrize(("count", "seed"), [pytest.param(1_000, 0, id="quick"), slow(100_000)])
def test_a_damaged_journal_has_no_wrong_verdicts_or_answers(tmp_path, count, seed):
    out, rng = tmp_path / "r.json", np.random.default_rng(0)
    saved = Journal(out, 0, "key", 50)
    saved.states[:], saved.loss[:] = rng.integers(0, 4, 50), rng.random(50)
    saved.answers = {number: str(number**3) for number in range(40)}
    saved.save(now=True)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    for name, chance in trials(count, seed):
        file.write_bytes(damaged := mutate_bytes(data, chance))
        journal = Journal(out, 0, "key", 50)
        journal.read()
        if damaged == data:
            np.testing.assert_array_equal(journal.states, saved.states)
            np.testing.assert_array_equal(journal.loss != 0, saved.states != OPEN)
            assert journal.answers == saved.answers
        else:
            assert not journal.done.any(), name
            assert not journal.answers, name
