"""What the experiments show, on a small scale; docs/experiments.md has the rest."""

import json
import re
import shlex
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from pathlib import Path

import attention_search
import learning_progress
import numpy as np
import pytest
import recipe
import repeat_training
import roles_simulations
import two_sets
from degree import ATTENTION, HELD, ROLES, SCALE, degree, degrees

import tp_transformer as tpt
from corpora import make_store, pairs
from documents import ROOT
from planted import nested, quotients
from tp_transformer.data.mathematics.modules import MODULE_NAMES
from tp_transformer.data.sampling import Feed
from tp_transformer.interpret.core.relations import OF_EXPRESSIONS as RELATIONS
from tp_transformer.interpret.core.structure import LABELS
from tp_transformer.interpret.roles.probes import Labelled, Positions
from tp_transformer.model import bundled
from tp_transformer.scoring.expressions import parse

TP, PLAIN = "tp-transformer-tiny", "transformer-tiny"


@pytest.mark.parametrize("expected", [0, 1, 2, 5, 16])
def test_the_degree_of_a_known_polynomial(expected):
    x = np.linspace(-1, 1, 19)
    rng = np.random.default_rng(expected)
    curves = [np.polynomial.Polynomial(rng.normal(size=1 + n))(x) for n in (0, expected)]
    assert degree(np.stack(curves, axis=1)) == expected


def test_what_is_no_polynomial_has_no_degree():
    assert degree(np.abs(np.linspace(-1, 1, 19))[:, None]) is None


@pytest.mark.parametrize("seed", range(2))
def test_the_degree_doubles_with_every_layer_of_tp_attention(seed):
    """Section 2.1: each layer's output is quadratic in its input, plain attention's is linear."""
    assert degrees(TP, seed) == [2, 4, 8, 16]
    assert degrees(PLAIN, seed) == [1, 1, 1, 1]
    assert degrees(TP, seed, (*HELD, ROLES)) == [1, 1, 1, 1]  # it is the roles that raise it


@pytest.mark.parametrize("held", [(), (ATTENTION,), (SCALE,)])
def test_a_softmax_and_a_layer_norm_are_no_polynomials(held):
    assert set(degrees(PLAIN, 0, held)) == {None}


def test_the_error_rates_of_the_attention_search(monkeypatch, capsys):
    questions = [parse(question) for question in nested(24).questions]
    monkeypatch.setattr(attention_search, "questions", lambda *_: questions)
    monkeypatch.setattr("sys.argv", ["attention_search.py", "--searches", "1"])
    attention_search.main()
    lines = capsys.readouterr().out.splitlines()
    n_blind, n_shares = len(attention_search.BLIND), len(attention_search.SHARES)
    lines, skipping = lines[:-2], lines[-2:]
    assert len(lines) == n_blind + len(RELATIONS) * n_shares
    assert all(f": 0 of {len(RELATIONS)}, " in line for line in lines[:n_blind])
    found = dict(line.split(": ") for line in lines[n_blind:])
    assert found["number to the other argument, 80%"].startswith("1 of 1")
    having = sum(bool(RELATIONS[attention_search.SKIPPING](one)) for one in questions)
    assert 8 <= having < 24  # every third question is a chain that has a numerator to skip
    assert all(f"in {having / 24:.0%} of 24 questions" in line for line in skipping)


def simulated(monkeypatch, capsys, *arguments):
    """The table that is printed at toy size: for each row its cells by column."""
    given = {
        roles_simulations.MIXED: nested(40),
        roles_simulations.QUOTIENTS: quotients(40),
    }
    monkeypatch.setattr(roles_simulations, "sample_of", lambda source, count: given[source])
    monkeypatch.setattr(roles_simulations, "SIZES", ((40, 20),))
    monkeypatch.setattr(roles_simulations, "ALL_QUESTIONS", 200)
    monkeypatch.setattr("sys.argv", ["roles_simulations.py", *arguments])
    roles_simulations.main()
    lines = capsys.readouterr().out.splitlines()
    names, _, *rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines]
    return lines, [dict(zip(names, row, strict=True)) for row in rows]


def is_documented(command, lines):
    """Whether docs/interpretation.md has a table of this kind, and names the command."""
    text = (ROOT / "docs" / "interpretation.md").read_text("utf-8")
    named = f"`python experiments/roles_simulations.py {command}"
    return "\n".join(lines[:2]) in text and named in text


def percent(cell):
    return float(cell.removesuffix("%"))


def test_the_simulation_of_unrelated_clusters(monkeypatch, capsys):
    lines, table = simulated(monkeypatch, capsys, "clusters", "--draws", "8")
    assert is_documented("clusters", lines)
    assert [row.pop("label") for row in table] == list(LABELS)
    found = [percent(cell) for row in table for cell in row.values()]
    assert len(found) == 10
    assert np.mean(found) < 20  # of 80, where 5% are expected


def test_clusters_that_are_the_labels_exceed_permuted_labels():
    positions = Positions.of(nested(40))
    side = Labelled.of("side", positions.labels["side"], positions.question)
    clusters = np.zeros(len(positions.characters), np.int64)
    clusters[side.position] = side.label
    rng = np.random.default_rng(0)
    assert roles_simulations.exceeds(clusters, side, rng)
    assert not roles_simulations.exceeds(np.zeros_like(clusters), side, rng)


def test_the_simulation_of_readers_of_the_text(monkeypatch, capsys):
    with monkeypatch.context() as small:
        small.setattr(roles_simulations, "REACHES", (0, 2))
        _, table = simulated(monkeypatch, capsys, "readers")
    assert is_documented("readers", list(islice(roles_simulations.readers(40), 2)))
    assert [row["label"] for row in table] == list(LABELS)
    place = next(row for row in table if row["label"] == "digit place")
    assert percent(place["2"]) > percent(place["0"]) + 10  # neighbours tell a digit's place
    assert percent(place["best, ridge 1"]) > percent(place["0"])


def test_the_simulation_of_the_reversal(monkeypatch, capsys):
    lines, table = simulated(monkeypatch, capsys, "reversal", "--draws", "3")
    assert is_documented("reversal", lines)
    assert len(table) == 8
    for vectors, questions, right, share, above, below in (row.values() for row in table):
        if vectors == "planted: reversed sides":
            assert min(percent(right), percent(share)) > 90
            assert (above, below) == ("3 of 3", "0 of 3")
        elif vectors == "planted: unreversed sides":
            assert min(percent(right), 100 - percent(share)) > 90
            assert (above, below) == ("0 of 3", "3 of 3")
        elif vectors == "random":
            assert 35 < percent(share) < 65
        elif questions == roles_simulations.QUOTIENTS:
            assert below == "1 of 1"  # what follows a "/" is a denominator


def test_the_simulation_of_draws(monkeypatch, capsys):
    lines, (row,) = simulated(monkeypatch, capsys, "draws", "--sets", "2", "--singles", "20")
    assert is_documented("draws", lines)
    assert (row.pop("questions"), row.pop("n")) == ("40", "20")
    assert len(row) == 6
    assert all(50 < float(cell.split(" ± ")[0]) <= 100 for cell in row.values())


def test_the_simulation_of_draws_from_a_model(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(roles_simulations, "QUESTIONS", 60)
    tpt.build(TP, n_layers=1, d_model=16, n_heads=2).save(tmp_path / "model")
    rows = [(question, "7") for question in quotients(80).questions]
    make_store(tmp_path / "store", {("interpolate", "arithmetic__mul_div_multiple", None): rows})
    options = ["--model", str(tmp_path / "model"), "--data", str(tmp_path / "store")]
    monkeypatch.setattr(roles_simulations, "N_PAPER", 40)
    lines, table = simulated(
        monkeypatch, capsys, "trained", *options, "--sets", "2", "--singles", "20"
    )
    assert is_documented("trained", [line.replace("40 samples", "100 samples") for line in lines])
    assert [row["40 samples are"] for row in table] == ["positions", "problems"]
    for _, mean, low, high, held in (row.values() for row in table):
        assert 0 < float(low) < float(mean) < float(high)
        assert percent(held) > 50


def pairs_by_segment(modules, count):
    keys = [("train", module, difficulty) for module in modules for difficulty in ("easy", "hard")]
    return {key: pairs("".join(key), count) for key in keys}


def test_a_store_of_two_sets(tmp_path):
    modules = MODULE_NAMES[:2]
    make_store(tmp_path / "store", pairs_by_segment(MODULE_NAMES[:3], 400))
    original = tpt.data.open(tmp_path / "store")
    made = tpt.data.open(two_sets.write(original.path, tmp_path / "two", modules, 40, 5))
    first, second = (
        Feed(store["train"], batch_size=1, modules=modules, held_out=40)
        for store in (original, made)
    )
    texts = [feed.split.rows(feed.held_out_rows) for feed in (first, second)]
    assert len(texts[0][0]) == 40
    assert texts[0] == texts[1]
    for segment in made["train"].segments:
        counts = Counter(made["train"].rows(segment.rows[:-10])[0])  # of the questions trained on
        assert len(counts) == 390
        repeated = [n for n in counts.values() if n > 1]
        assert len(repeated) == 5
        assert sum(repeated) / counts.total() == pytest.approx(two_sets.SHARE, abs=0.01)


def test_two_sets_need_as_many_held_out_questions_as_without(tmp_path):
    make_store(tmp_path / "store", pairs_by_segment(MODULE_NAMES[:1], 100))
    with pytest.raises(SystemExit, match="too few questions"):
        two_sets.write(tmp_path / "store", tmp_path / "two", MODULE_NAMES[:1], 40, 5)


def test_weights_by_learning_progress():
    before = {"a": 1.0, "b": 2.0, "c": 0.5, "d": 0.1}
    after = {"a": 0.7, "b": 1.9, "c": 0.5, "d": 0.2}
    found = learning_progress.weights(before, after)
    assert found == pytest.approx({"a": 3.0, "b": 1.0, "c": 0.2, "d": 0.2})
    assert learning_progress.weights(after, after) == dict.fromkeys(after, 1.0)


def test_the_processor_time_of_each_of_several_commands(tmp_path, monkeypatch):
    command = tmp_path / "tpt"
    busy = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done"
    command.write_text(f'#!/bin/sh\nif [ "$1" = busy ]; then {busy}; else sleep 1; fi\n')
    command.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with ThreadPoolExecutor(2) as pool:
        idle, calculating = pool.map(recipe.tpt, ("idle", "busy"))
    assert calculating > 5 * idle


def options_of(arguments):
    """The options of a command, given as --name=value or as --name value."""
    given = [one.split("=", 1) for one in arguments if one.startswith("--") and "=" in one]
    named = pairwise(arguments)
    return {**dict(given), **{k: v for k, v in named if k.startswith("--") and "=" not in k}}


def run_recipe(monkeypatch, capsys, out, *more):
    """Run the comparison without training; return the commands and the rows of the table."""
    commands = []

    def tpt_command(verb, *arguments):
        options = options_of(arguments)
        commands.append((verb, options))
        if verb == "train":
            run = Path(options["--run"])
            run.mkdir(parents=True)
            line = {"kind": "validation", "loss": 1.0, "exact_match": 0.5}
            (run / "metrics.jsonl").write_text(json.dumps(line))
        else:
            falling = "step" in Path(options["--model"]).name
            scores = {one: {"loss": 1.0 + falling * n} for n, one in enumerate(MODULE_NAMES)}
            Path(options["--out"]).write_text(
                json.dumps({"splits": {"train": {"modules": scores}}})
            )
        return 1.0

    monkeypatch.setattr(recipe, "tpt", tpt_command)
    monkeypatch.setattr("sys.argv", ["recipe.py", "math", "--out", str(out), *more])
    recipe.main()
    return commands, capsys.readouterr().out.splitlines()[2:]


def test_the_stages_of_the_recipe(monkeypatch, capsys, tmp_path):
    equal, by_progress = (name for name, one in recipe.SETTINGS.items() if one.stages)
    found = {}
    for name, n_seconds in ((equal, 4), (by_progress, 10)):
        commands, rows = run_recipe(monkeypatch, capsys, tmp_path, "--only", name)
        speed = f"{64_000 / n_seconds:.0f}"
        assert rows == [f"| {name} | 64,000 | 1.0000 | 50.0% | {n_seconds} | {speed} |"]
        found[name] = [options for verb, options in commands if verb == "train"]
        assert sum(int(one["--training.steps"]) for one in found[name]) * 64 == 64_000
        assert [float(one["--optim.cooldown"]) for one in found[name]] == [0, 0, 0, 1]
        starts = [one.get("--init-from") for one in found[name]]
        assert starts == [None, *(one["--run"] for one in found[name][:-1])]
    differing = [
        {key for key in one if one[key] != other[key]} - {"--run", "--init-from"}
        for one, other in zip(*found.values(), strict=True)
    ]
    assert differing == [set(), *[{"--data.weights"}] * 3]
    again, _ = run_recipe(monkeypatch, capsys, tmp_path, "--only", equal, by_progress)
    assert again == []


def test_the_table_of_the_recipe_keeps_the_order_of_the_settings(monkeypatch, capsys, tmp_path):
    names = [name for name, one in recipe.SETTINGS.items() if not one.repeated]
    _, rows = run_recipe(
        monkeypatch, capsys, tmp_path, "--processes", "2", "--samples", "6400", "--only", *names
    )
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == names
    assert len(list(tmp_path.glob("*.json"))) == len(names)
    with pytest.raises(SystemExit, match="6400 samples; use another --out"):
        run_recipe(monkeypatch, capsys, tmp_path, "--only", names[0])


def test_the_commands_that_repeat_the_training_of_a_model(tmp_path, capsys, monkeypatch):
    """Those of its card, in other folders."""
    name = "tp-transformer-small"
    card = (bundled.FOLDER / name / "README.md").read_text("utf-8")
    *expected, _ = re.findall(r"^\$ (.*)$", card, re.MULTILINE)  # the last continues the training
    assert f"python experiments/repeat_training.py {name} --out" in card
    listed = list(repeat_training.commands(name, tmp_path))
    texts = [shlex.join(command).replace(f"{bundled.FOLDER / name}/", "") for command in listed]
    named = re.compile(rf"{tmp_path}/(?=tp)")
    assert [named.sub("runs/", text).replace(f"{tmp_path}/", "") for text in texts] == expected
    monkeypatch.setattr("sys.argv", ["repeat_training.py", name, "--out", "x", "--dry-run"])
    repeat_training.main()
    assert len(capsys.readouterr().out.splitlines()) == len(listed)
    *_, (_, verb, *_) = repeat_training.commands(name, tmp_path, tmp_path / "math")
    assert verb == "train"
