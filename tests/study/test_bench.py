"""The binding bench: a toy task end to end, interrupted and resumed; its plan; its statistics."""

import io
import json
import random
import re
import shutil
from dataclasses import replace
from statistics import mean, stdev

import numpy as np
import pytest
from rich.console import Console

import runs
from documents import ROOT
from legible import illegible, texts
from runs import tpt
from tp_transformer.data.task import TASKS, Row, Task
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import FolderError, ResultsError, SettingsError
from tp_transformer.model.checkpoint import from_config
from tp_transformer.model.config import WithoutWeights
from tp_transformer.scoring.results import Results
from tp_transformer.scoring.statistics import holm, sign_flip_test
from tp_transformer.study import bench as benching
from tp_transformer.study import engine
from tp_transformer.study.bench import (
    BENCH_TASKS,
    SUBSET,
    BenchPlan,
    BenchTask,
    bench,
    bench_task,
    samples_of,
    tabulated,
)
from tp_transformer.study.bench_table import (
    latex,
    markdown,
    plot,
    relative_cost,
    render,
    save,
    tables,
)
from tp_transformer.training.config import RunConfig
from tp_transformer.verbs.study import Bench

TINY = {
    "model": {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_layers": 1},
    "data": {"batch_size": 8},
    "optim": {"learning_rate": 0.03, "warmup": 0},
    "validation": {"count": 8},
}
STEPS = 6


def letters(*, seed: int = 0) -> Task:
    """The first letter of some, in two modules; more letters in the second test split."""

    def rows():
        chance = random.Random(seed)
        for split, length, count in (("train", 4, 90), ("test", 4, 40), ("longer", 6, 30)):
            for _ in range(count):
                text = "".join(chance.choices("abc", k=length))
                yield Row(split, "even" if text[-1] == "a" else "odd", text, text[0])

    splits = dict.fromkeys(("train", "test", "longer"), ("even", "odd"))
    return Task(name="toy", vocabulary=Vocabulary.of("abc"), splits=splits, rows=rows)


@pytest.fixture(autouse=True, scope="module")
def _toy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS._entries, "toy", letters)
        toy = BenchTask(preset="scan", samples=8 * STEPS, task="toy", settings=TINY)
        patch.setitem(BENCH_TASKS._entries, "toy", toy)
        patch.setattr(benching, "COST_ROUNDS", 2)
        patch.setattr(engine.subprocess, "Popen", runs.Forked)
        patch.setattr(engine, "_SECONDS_BETWEEN_LOOKS", 0.01)
        yield


def plan(folder, **changed):
    given = {"tasks": ["toy"], "variants": ["none", "hadamard"], "seeds": [0, 1]}
    return BenchPlan(out=folder, **{**given, **changed})


def done_by(chosen):
    return bench(chosen, 1, Console(file=io.StringIO()))


def without_costs(table):
    return replace(table, rows=tuple(replace(row, cost=None) for row in table.rows))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    chosen = plan(tmp_path_factory.mktemp("bench") / "out")
    return chosen, done_by(chosen)


@pytest.fixture
def done(finished, tmp_path):
    """A finished bench in a folder that the test may change, and its table."""
    shutil.copytree(finished[0].out, tmp_path / "copy", symlinks=True)
    return replace(finished[0], out=tmp_path / "copy"), finished[1]


def models_of(chosen):
    return [Results.read(run.results).model["sha256"] for run in chosen.runs().values()]


def test_an_interrupted_bench_resumes_to_the_same_table(tmp_path, finished, monkeypatch):
    """Interrupted within the third run, and when that is trained but not scored."""
    chosen = plan(tmp_path / "resumed")
    third = list(chosen.runs().values())[2]

    def sleep(_):
        if list(third.folder.glob("checkpoints/step-*/state.json")):
            raise KeyboardInterrupt

    def evaluate(folder, *_, **__):
        raise KeyboardInterrupt

    for module, name, function in ((engine.time, "sleep", sleep), (engine, "evaluate", evaluate)):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, function)
            with pytest.raises(KeyboardInterrupt):
                done_by(chosen)
        assert not third.is_scored
    partial = tabulated(chosen)
    assert (partial.n_done, partial.n_runs) == (2, 4)
    assert [row.seeds for row in partial.rows] == [(0,), (0,)]
    assert all(row.cost is None for row in partial.rows)
    assert "2 of 4 runs are done" in markdown(partial)
    resumed = done_by(chosen)
    assert models_of(chosen) == models_of(finished[0])
    assert without_costs(resumed) == without_costs(finished[1])


def test_a_finished_bench_is_only_tabulated(done, monkeypatch):
    chosen, table = done
    monkeypatch.setattr(engine.subprocess, "Popen", None)
    monkeypatch.setattr(benching, "measure_costs", None)
    assert done_by(chosen) == table == tabulated(chosen)


def test_settings_differ_only_in_the_model(tmp_path):
    variants = ["none", "silu", "none-matched", "tp-transformer"]
    chosen = plan(tmp_path, tasks=list(BENCH_TASKS), variants=variants)
    for task in BENCH_TASKS:
        one, *others = configs = [chosen.config(task, variant, 0) for variant in variants]
        assert all(replace(other, model=one.model) == one for other in others)
        with WithoutWeights():
            plain, bound, matched, _ = (from_config(each.model).n_parameters for each in configs)
        unit = one.model.n_layers * (4 * one.model.d_model + 2)
        assert plain < bound
        assert abs(matched - bound) <= unit / 2
        assert one.training.steps * one.data.batch_size >= BENCH_TASKS[task].samples
        assert not one.model.embedding_binding


def test_another_registered_task_has_the_settings_of_a_tiny_model(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS._entries, "other", letters)
    config = plan(tmp_path, tasks=["other"]).config("other", "none", 0)
    assert config.model.d_model == RunConfig.of("tp-transformer-tiny").model.d_model
    assert config.training.steps * config.data.batch_size == 64_000
    store = bench_task("other").write(tmp_path / "data")
    assert store.task.test_splits == ("test", "longer")


def test_variants_have_the_fields_that_follow_their_name(tmp_path):
    variants = ["sigmoid+per_head=true", "low-rank", "low-rank+rank=5", "tp-transformer"]
    chosen = plan(tmp_path, variants=variants)
    models = [chosen.config("toy", variant, 0).model for variant in variants]
    options = [model.binding_options for model in models]
    assert options == [{"per_head": True}, {"rank": 8}, {"rank": 5}, {}]
    assert [model.embedding_binding for model in models] == [False, False, False, True]
    assert chosen.reference == variants[0]


def verdicts_of(chosen, split):
    """The verdicts of each variant and seed by module, from the files of scores."""
    return {
        (variant, seed): [
            score.verdicts.astype(int) for score in results.splits[split].modules.values()
        ]
        for (_, variant, seed), run in chosen.runs().items()
        for results in [Results.read(run.results)]
    }


def test_the_numbers_of_the_table(finished):
    chosen, table = finished
    none, hadamard = table.rows
    assert [score.split for score in none.scores] == ["held-out", "test", "longer"]
    for place, split in ((1, "test"), (2, "longer")):
        verdicts = verdicts_of(chosen, split)
        ours, theirs = (
            [mean(map(np.mean, verdicts[variant, seed])) for seed in (0, 1)]
            for variant in ("hadamard", "none")
        )
        score = hadamard.scores[place]
        assert score.mean == pytest.approx(mean(ours))
        assert score.spread == pytest.approx(stdev(ours))
        assert score.test.difference == pytest.approx(mean(ours) - mean(theirs))
        assert none.scores[place].test is None
        differences = [
            sum(module[:2]) - sum(module[2:])
            for module in zip(
                *(verdicts[variant, seed] for variant in ("hadamard", "none") for seed in (0, 1)),
                strict=True,
            )
        ]
        assert score.test.p_questions == sign_flip_test(differences)
        assert len(set(ours + theirs)) > 1  # or this would show nothing
    assert hadamard.scores[0].test is None
    assert none.samples == 8 * STEPS
    assert none.cost == 1
    assert hadamard.cost > 0
    assert hadamard.n_parameters > none.n_parameters
    for row in table.rows:
        for seed, held_out in zip(row.seeds, row.scores[0].accuracies, strict=True):
            folder = chosen.out / "toy" / "runs" / row.variant / f"seed-{seed}"
            lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
            curve = [line for line in lines if line["kind"] == "validation"]
            assert len(curve) == STEPS
            assert held_out == curve[-1]["exact_match"]


def test_samples_to_learn_are_those_of_the_first_validation_above_90_percent(done):
    chosen, _ = done
    file = chosen.runs()["toy", "hadamard", 0].folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "validation":
            line["exact_match"] = {3: 0.9, 4: 0.5, 5: 1.0}.get(line["step"], 0.0)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = tabulated(chosen)
    assert table.rows[1].samples_to_learn == (3 * 8, None)
    (shown,) = tables(table)
    heads, body = shown.heads, shown.rows
    assert body[1][heads.index("Samples to 90%")] == "24 (1 of 2)"


def test_the_formats_have_all_rows(finished, tmp_path):
    _, table = finished
    files = save(table, tmp_path / "files")
    assert [file.name for file in files] == [f"bench.{kind}" for kind in FILES]
    values = json.loads(files[0].read_text("utf-8"))
    assert [row["variant"] for row in values["rows"]] == ["none", "hadamard"]
    assert values["rows"][1]["scores"][1]["mean"] == table.rows[1].scores[1].mean
    (shown,) = tables(table)
    heads, body = shown.heads, shown.rows
    assert {len(line) for line in body} == {len(heads)}
    rows = [line for line in markdown(table).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {len(heads) + 1}
    text = latex(table)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    inside = text.split(r"\toprule")[1].split(r"\bottomrule")[0]
    cells = [line.split(" & ") for line in inside.splitlines() if "&" in line]
    assert [len(line) for line in cells] == [len(heads)] * 3
    assert not re.search(r"(?<!\\)%", text.partition("\n")[2])


@pytest.mark.parametrize("width", [80, 200])
def test_a_narrow_terminal_gets_narrow_tables(finished, width):
    _, table = finished
    file = io.StringIO()
    render(table, Console(file=file, width=width))
    lines = [line for line in file.getvalue().splitlines() if line.startswith("hadamard")]
    assert len(lines) == (3 if width == 80 else 1)
    words = " ".join(lines).split()
    body = tables(table)[0].rows
    expected = [word for cell in body[1] for word in cell.split()]
    assert [word for word in words if word != "hadamard"] == expected[1:]


FILES = ("json", "md", "tex", "svg", "pdf", "png")


@pytest.mark.parametrize("n_variants", [2, 8])
def test_the_figure_is_legible(finished, n_variants):
    _, table = finished
    names = ["none", "hadamard", "sigmoid+per_head=true", *(f"other-{n}" for n in range(5))]
    rows = [
        replace(table.rows[min(place, 1)], variant=name, task=task)
        for task in ("mathematics-subset", "scan-add-jump", "lookup")
        for place, name in enumerate(names[:n_variants])
    ]
    wider = [replace(rows[0].scores[1], title="Extrapolation")]  # four splits, as of recall
    rows = [replace(row, scores=(*row.scores, *wider)) for row in rows]
    drawn = plot(replace(table, rows=tuple(rows)))
    found = texts(drawn)
    assert illegible(drawn, found) == []
    assert {"none", "lookup\nLonger"} <= {one.words for one in found}


def test_other_settings_in_the_folder_are_an_error(done):
    chosen, _ = done
    before = sorted(chosen.out.rglob("*"))
    for attempt in (done_by, tabulated):
        with pytest.raises(FolderError, match=r"other settings: training.steps is 6, not 10"):
            attempt(replace(chosen, budget=80))
    assert sorted(chosen.out.rglob("*")) == before


def test_more_seeds_and_variants_join_and_are_adjusted_together(done):
    chosen, table = done
    wider = done_by(replace(chosen, seeds=[0, 1, 2], variants=["none", "hadamard", "constant"]))
    assert wider.n_runs == wider.n_done == 9
    first = [score.accuracies[:2] for score in wider.rows[1].scores]
    assert first == [score.accuracies for score in table.rows[1].scores]
    tests = [score.test for row in wider.rows for score in row.scores if score.test]
    assert len(tests) == 4
    for name in ("p_seeds", "p_questions"):
        known = [one for one in tests if getattr(one, name) is not None]
        assert len(known) > 1
        adjusted = [getattr(one, f"{name}_holm") for one in known]
        assert adjusted == pytest.approx(holm([getattr(one, name) for one in known]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tasks": ["toi"]}, "there is no task of the bench 'toi' (did you mean 'toy'?)"),
        ({"variants": ["hadamrad"]}, "there is no binding 'hadamrad' (did you mean 'hadamard'?)"),
        ({"variants": ["none-matchd"]}, "(did you mean 'none-matched'?)"),
        ({"variants": ["sigmoid+per_haed=true"]}, "did you mean 'per_head'?"),
        ({"variants": ["sigmoid+per_head"]}, "'per_head' is not a field and its value"),
        ({"reference": "nine"}, "'nine' is not one of the bindings (did you mean 'none'?)"),
        ({"seeds": []}, "a bench needs seeds"),
    ],
)
def test_mistakes_in_a_plan_are_errors(tmp_path, changed, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        plan(tmp_path, **changed)


def test_what_is_not_a_bench_is_an_error(tmp_path):
    (tmp_path / "bench.md").write_text("mine")
    for folder, message in (("", r"has other files \(bench\.md\)"), ("bench.md", "is a file")):
        with pytest.raises(FolderError, match=message):
            done_by(plan(tmp_path / folder))
    with pytest.raises(ResultsError, match="has no finished run"):
        tabulated(plan(tmp_path / "none"))
    assert [path.name for path in tmp_path.iterdir()] == ["bench.md"]


@pytest.mark.parametrize(
    ("text", "count"), [("64000", 64_000), ("64k", 64_000), ("1.5M", 1_500_000), ("1", 1)]
)
def test_a_budget_is_a_number_of_samples(text, count):
    assert samples_of(text) == count


@pytest.mark.parametrize("text", ["", "k", "0", "-5k", "1.5", "2h", "inf", "nan"])
def test_another_budget_is_an_error(text):
    with pytest.raises(SettingsError, match="is a number of samples"):
        samples_of(text)


def test_the_cost_is_the_median_ratio_of_rounds():
    seconds = {"none": [1.0, 2.0, 4.0], "hadamard": [2.0, 2.0, 6.0]}
    assert relative_cost(seconds, "hadamard", "none") == 1.5
    assert relative_cost(seconds, "tensor", "none") is None


def test_the_help_lists_every_task():
    assert set(re.findall(r"[a-z]+(?:-[a-z]+)*", Bench.__doc__)) >= BENCH_TASKS.keys() - {"toy"}


def test_mistakes_on_the_command_line_end_in_one_line(capsys, tmp_path):
    out = tmp_path / "out"
    for more, message in (
        (["--tasks", "scna"], "did you mean 'scan'?"),
        (["--budget", "2h"], "is a number of samples"),
        (["--tabulate"], "has no finished run"),
    ):
        code, said, err = tpt(capsys, "bench", "--out", str(out), *more)
        assert (code, said) == (2, "")
        assert message in err
        assert err.count("\n") == 1
        assert not out.exists()


def test_the_command_trains_in_processes_and_prints_the_table(capsys, tmp_path, monkeypatch):
    extension = tmp_path / "extension.py"
    extension.write_text(
        "from tp_transformer.study.bench import BENCH_TASKS, BenchTask\n"
        f"BENCH_TASKS.register('short')(BenchTask(preset='lookup', samples=16, task='lookup', "
        f"options={{'tables': 2, 'bits': 1}}, settings={TINY!r}))\n"
    )
    monkeypatch.setenv("TPT_IMPORT", str(extension))
    monkeypatch.setattr(BENCH_TASKS, "_entries", dict(BENCH_TASKS))
    arguments = ["--tasks", "short", "--bindings", "none", "silu", "--seeds", "0", "1"]
    command = ["bench", "--out", str(tmp_path / "out"), *arguments, "--processes", "2"]
    code, out, err = tpt(capsys, *command)
    assert code == 0, err
    assert "4 of 4 runs are done" in " ".join(out.split())
    assert "silu" in out
    assert "bench" in err
    code, again, _ = tpt(capsys, *command, "--tabulate")
    assert (code, again) == (0, out)


def test_the_page_has_the_budgets():
    page = (ROOT / "docs" / "bench.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| `([a-z-]+)`[^|]*\| ([\d,]+) \|", page, re.MULTILINE)
    stated = {name: (preset, int(samples.replace(",", ""))) for name, preset, samples in rows}
    known = {name: (one.preset, one.samples) for name, one in BENCH_TASKS.items() if name != "toy"}
    assert stated == known
    for module, weight in SUBSET.items():
        assert f"`{module}`" in page
        assert weight > 0
