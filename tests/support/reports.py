"""Runs, results, analyses and a bench that nothing computed, for tests of the report."""

import json
from dataclasses import replace

from scores import made_up
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.scoring.results import Mistake, SplitScore
from tp_transformer.study.bench_table import BenchRow, BenchScore, BenchTable, BenchTest

HOSTILE = (
    "</style></script><script>window.intruder=1</script><img src=x onerror=intruder=2>$title{}"
)
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="200pt" height="50pt" viewBox="0 0 200 50">'
    '<script>window.intruder = 3; parent.intruder = 4</script><text y="20">drawn</text></svg>'
)


def analysis(name="roles", **more):
    """The values of an analysis, as `Result.save` writes them."""
    table = {"title": "Probes", "columns": ["", "accuracy"], "note": "a note"}
    return {
        "analysis": name,
        "model": {"name": "tiny", "step": 1200, "sha256": "0"},
        "sample": {"origin": "48 questions of quotients", "questions": [], "answers": []},
        "environment": {"command": f"tpt interpret {name} --out analysis"},
        "seed": 3,
        "summary": [f"What {name} found."],
        "tables": [{**table, "rows": [["side", "9%"], ["depth", "80%"], ["digit", "-"]]}],
        "captions": {f"{name}-figure": "What is drawn."},
        "has_captions": False,
        **more,
    }


def write_analysis(folder, name="roles", **more):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    file.write_text(json.dumps(analysis(name, **more)), "utf-8")
    (folder / f"{name}-figure.svg").write_text(SVG, "utf-8")
    return file


def write_run(folder, **more):
    """A run folder with what a report reads of it."""
    folder.mkdir(parents=True)
    origin = {"data": str(folder.parent / "data"), "data_sha256": "0", "n_parameters": 1234, **more}
    (folder / "run.json").write_text(json.dumps(origin), "utf-8")
    (folder / "config.yaml").write_text("model: {binding: hadamard, d_model: 64}\n", "utf-8")
    train = {"exact_match": 0.1, "learning_rate": 0.1, "samples_per_second": 1, "padding": 0}
    train |= {"waiting": 0, "skipped": 0, "elapsed": 1, "progress": 0.5, "time_left": None}
    lines = [
        {"kind": "train", "step": 1, "loss": 3.5, **train},
        {"kind": "train", "step": 1000, "loss": 0.25, **train},
        {"kind": "validation", "step": 500, "loss": 1, "exact_match": 0.5, "n": 64, "best": True},
        {"kind": "validation", "step": 1000, "loss": 1, "exact_match": 0.75, "n": 64, "best": True},
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    return folder


def write_bench(folder):
    """A bench of four variants on one task, as `tpt bench` writes it."""

    def row(variant, difference=None):
        test = None
        if difference is not None:
            p = {"p_seeds": 0.1, "p_seeds_holm": 0.25, "p_questions": 0, "p_questions_holm": 0.0001}
            test = BenchTest(difference=difference, interval=None, **p)
        mean = 0.5 + (difference or 0)
        scores = (
            BenchScore(split="held-out", title="Held out", accuracies=(0.9, 0.9)),
            BenchScore(
                split="test", title="Test", accuracies=(mean - 0.02, mean + 0.02), test=test
            ),
        )
        facts = {"task": "scan", "variant": variant, "n_parameters": 1000, "samples": 64000}
        more = {"seeds": (0, 1), "samples_to_learn": (32000, None), "cost": 1.25}
        return BenchRow(**facts, **more, scores=scores)

    rows = (row("none"), row("hadamard", 0.125), row("tensor", -0.25), row("silu", -0.0625))
    made = {"command": "tpt bench --tasks scan"}
    table = BenchTable(reference="none", n_done=8, n_runs=16, rows=rows, made=made)
    folder.mkdir(parents=True)
    (folder / "bench.json").write_text(json.dumps(table.to_json()), "utf-8")
    return folder


def hostile_results():
    """Results on a task whose names and questions are markup."""
    mistake = Mistake(kind="sign", question=HOSTILE, answer=HOSTILE, predicted=HOSTILE)
    own = made_up(HOSTILE, n=8, splits={"test": [HOSTILE]}, skill=0.5)
    (score,) = own.splits["test"].modules.values()
    score = replace(score, examples=(mistake,), wrong={"sign": 1})
    names = {"name": HOSTILE, "splits": {"test": (HOSTILE,)}, "titles": {"test": HOSTILE}}
    task = replace(MATHEMATICS, **names, continues={})
    return replace(
        own,
        splits={"test": SplitScore({HOSTILE: score})},
        data={"task": task.to_json(), "held_out": None},
        made={"command": HOSTILE},
    )
