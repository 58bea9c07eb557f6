"""docs/own-data.md: its commands, in its order, from a CSV of pairs to figures of attention."""

import csv
import json
import random

import pyarrow.parquet as parquet
import pytest

import tp_transformer as tpt
from documents import ROOT, blocks, commands
from tp_transformer import cli

PAGE = (ROOT / "docs" / "own-data.md").read_text("utf-8")
LETTERS = "αβγδεζηθκλμßäöüΩ"
# What makes the test short; the commands are otherwise those of the page.
SMALL = [
    *("--model.d_model=16", "--model.d_ff=16", "--model.n_layers=1", "--model.n_heads=1"),
    *("--training.steps=6", "--data.batch_size=16", "--validation.every=6"),
]


def write_pairs(file):
    """Words to be mirrored, in letters beyond ASCII, and the two of the page."""
    chance = random.Random(0)
    words = {"".join(chance.choices(LETTERS, k=chance.randrange(3, 7))) for _ in range(300)}
    words = ["Ωμέγα", "Straße", *sorted(words)]
    with file.open("w", encoding="utf-8", newline="") as text:
        rows = [(f"Spiegle: {word}", word[::-1]) for word in words]
        csv.writer(text, lineterminator="\n").writerows([("question", "answer"), *rows])


def test_the_pages_commands_work_one_after_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "pairs.csv")
    (example,) = (block for block in blocks("", PAGE) if block.startswith("question,answer"))
    assert (tmp_path / "pairs.csv").read_text("utf-8").startswith(example)
    five, further = blocks("console", PAGE)
    assert five.count("$ ") == 5
    assert "&&" not in five
    for program, *arguments in commands(f"```console\n{five}```\n```console\n{further}```"):
        assert program == "tpt"
        cli.main([*arguments, *(SMALL if arguments[0] == "train" else [])])
    printed = capsys.readouterr().out
    assert "on average over 2 seeds (0, 1), standard deviation" in " ".join(printed.split())
    assert {path.suffix for path in (tmp_path / "analysis").iterdir()} >= {".json", ".png", ".svg"}
    for seed in (0, 1):
        name = tpt.Results.read(f"results-seed-{seed}.json").name
        assert name.endswith(f"seed-{seed}")
    bars = tpt.plot(tpt.Results.read("results-seed-0.json"))
    assert [drawn.get_suptitle() for drawn in bars.values()] == ["Test: accuracy on each module"]
    store = tpt.data.open("mirror")
    found = json.loads((tmp_path / "analysis" / "attention-encoder.json").read_text("utf-8"))
    tested = {example.question for example in store["test"]}
    assert set(found["sample"]["questions"]) <= tested
    assert {"ß", "Ω"} <= set(tpt.load("runs/seed-0").vocabulary.tokens)
    assert parquet.read_table("exported/data")["question"].to_pylist()


@pytest.mark.parametrize("analysis", ["binding", "interchange", "roles"])
def test_what_does_not_apply_is_said(analysis, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "pairs.csv")
    words = ["--tokenisation=words"] if analysis == "roles" else []
    cli.main(["data", "prepare", "pairs.csv", "--task=mirror", "--out=mirror", *words])
    cli.main(["train", "--config=tp-transformer-tiny", "--data=mirror", "--run=run", *SMALL])
    capsys.readouterr()
    data = ["--data=mirror"] if analysis == "roles" else []  # the others take none
    with pytest.raises(SystemExit) as stopped:
        cli.main(["interpret", analysis, "--model=run", *data, "--out=analysis"])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert ("tokens of this model are words" if words else "asks nested fractions") in said
    assert not (tmp_path / "analysis").exists()


def test_the_modules_there_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{split},{group},{i},{i}\n" for i in range(9) for split, group in
                   (("train", "a"), ("dev", "b"), ("dev", "c")))  # fmt: skip
    (tmp_path / "pairs.csv").write_text(f"split,group,question,answer\n{rows}", "utf-8")
    cli.main(["data", "prepare", "pairs.csv", "--task=copy", "--out=copy"])
    model = tpt.build("tp-transformer-tiny")
    model.save("model")
    for options, message in (
        ([], "no arithmetic__mixed in its dev split; choose another by --module: b, c"),
        (["--module=x"], "has no x in its dev split; choose another by --module: b, c"),
        (["--split=tset"], "has no split 'tset'; it has train, dev"),
    ):
        with pytest.raises(SystemExit):
            cli.main(
                ["interpret", "information", "--model=model", "--data=copy", "--out=o", *options]
            )
        assert message in capsys.readouterr().err
