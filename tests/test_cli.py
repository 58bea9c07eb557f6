"""The command line: what it prints, and one line with exit code 2 for what a user gets wrong."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

import tp_transformer as tpt
from commands import groups, options, verbs
from tp_transformer import __version__
from tp_transformer.cli import main, parse
from tp_transformer.data.mathematics.modules import with_difficulties
from tp_transformer.data.mathematics.produce import Order
from tp_transformer.model.config import TransformerConfig
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.scoring.published import TABLE_1
from tp_transformer.settings import read
from tp_transformer.training.config import config_values, run_config, section_kinds
from tp_transformer.verbs.data import MATHEMATICS_COUNT, Generate
from tp_transformer.verbs.model import Solve
from tp_transformer.verbs.results import Evaluate


def run(capsys, *arguments):
    """The exit code, standard output and standard error of `tpt` with these arguments."""
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_models_prints_the_counts_beside_the_papers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(capsys, "models")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split() for line in out.splitlines()}
    assert rows["tp-transformer"][1:4] == ["hadamard", "49,178,112", "49.1M"]
    assert rows["transformer"][1:4] == ["none", "44,187,648", "44.2M"]
    assert rows["lstm-saxton"][1:4] == ["-", "17,766,495", "18M"]
    assert rows["tp-transformer-tiny"][3] == "-"
    assert list(rows)[1 : len(TABLE_1) + 1] == list(TABLE_1)
    table = [line for line in out.splitlines() if not line.startswith("  card: ")]  # a path
    assert max(map(len, table)) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nonsense", "there is no verb 'nonsense'; the verbs are data, interpret,"),
        ("trian", "there is no verb 'trian' (did you mean 'train'?)"),
        ("data exprot", "there is no verb 'exprot' (did you mean 'export'?); the verbs are gene"),
        ("models --nonsense", "there is no option --nonsense"),
        ("solve --version", "there is no option --version"),
        ("--verbose", "there is no option --verbose"),
        ("evaluate --modle x", "there is no option --modle (did you mean --model?)"),
        ("solve --n 3", "there is no option --n (did you mean --n-best?)"),
        ("train --steps=3", "there is no option --steps (did you mean --training.steps?)"),
        ("train --log-every=3", "(did you mean --training.log_every?)"),
        ("train --budgte=3", "there is no option --budgte (did you mean --budget?)"),
        ("train --trainig.steps=3", "(did you mean --training.steps?)"),
        ("train --training.stesp=3", "(did you mean --training.steps?)"),
        ("train --training=3", "there is no option --training"),
        ("train --data.steps=3", "there is no option --data.steps"),
        ("train --training.steps", "--training.steps needs a value"),
        ("train training.steps=3", "there is no use for 'training.steps=3'"),
        ("train --config transformer", "name the run's folder: --run DIR"),
        ("train --print_config", "name the settings to print: --config"),
        ("train --config=transformer --budget=-2h", "'-2h' is not a positive duration"),
        ("train --config=transformer --optim.betas=[0.9]", "a list of 2 numbers, not [0.9]"),
        ("train --config=transformer --data.modules=3", "a list of texts, not 3"),
        ("data generate --out=x --splits trian", "interpolate, extrapolate (did you mean 'train'?"),
        ("data generate --task.count=3", "--task.count (did you mean --count?)"),
        ("data generate --out=x --executor=foo", "(--executor) must be dask://"),
        ("data export x --format csv --out y", "must be one of v1.0, parquet, jsonl, not 'csv'"),
        ("evaluate --data x", "tpt: --out is required\n"),
        ("evaluate --count=3", "there is no option --count (did you mean --train-count?)"),
        ("data show", "tpt: STORE is required\n"),
        ("data show x y", "tpt: there is no use for 'y'\n"),
        ("bench --out x --seeds", "tpt: --seeds needs a value\n"),
        ("bench --out x --seeds 0 1.5", "tpt: --seeds must be a whole number, not 1.5\n"),
        ("solve 1 --max-length 0", "--max-length must be from 1 to 10000, not 0"),
        (
            "import-authors x --vocab y --out z --heads many",
            "tpt: --heads must be a whole number, not 'many'",
        ),
        ("interpret binding --data=x --out=y", "there is no option --data"),
        ("interpret roles --answered maybe", "--answered must be true or false, not 'maybe'"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(capsys, arguments, message):
    code, out, err = run(capsys, *arguments.split())
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("tpt: ")
    assert err.count("\n") == 1


def test_errors_of_the_system_name_the_file(capsys, tmp_path):
    model = tmp_path / "model"
    tpt.build("tp-transformer-tiny").save(model)
    absent = str(tmp_path / "absent")
    code, out, err = run(capsys, "solve", "--file", absent, "--model", str(model))
    assert (code, out, err) == (2, "", f"tpt: {absent}: No such file or directory\n")
    file = tmp_path / "file"
    file.write_text("")
    code, out, err = run(capsys, "demo", "--out", str(file))
    assert (code, out, err) == (2, "", f"tpt: {file} is a file; name a folder for the demo\n")


@pytest.mark.parametrize("words", groups())
def test_without_a_verb_there_is_help(capsys, words):
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert run(capsys, *words, "--help") == (code, out, err)
    for path, verb in verbs():
        if path[: len(words)] == words:
            assert f"│ {path[len(words)]} " in out
            assert len(path) > len(words) + 1 or summary(verb) in one_line(out)


def summary(verb):
    return verb.__doc__.partition("\n")[0]


def one_line(text):
    """Without line breaks, also those after hyphens, and without frames."""
    return re.sub(r"(?<=\w)- (?=\w)", "-", " ".join(re.sub("[│*]", " ", text).split()))


LEAKS = r"<class|Annotated|Optional|Union|Literal|NoneType|\b(PositiveInt|Path|int|str|bool|null)\b"


@pytest.mark.parametrize(("words", "verb"), verbs())
def test_help_lists_every_option_with_its_documentation(capsys, monkeypatch, words, verb):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = run(capsys, *words, "--help")
    assert (code, err) == (0, "")
    assert summary(verb) in one_line(out)
    assert not re.search(LEAKS, out)
    for option in options(words):
        assert len(option.parameter.help) > 5
        assert one_line(option.parameter.help) in one_line(out)
        assert re.search(rf"^│ [* ]*{option.name} ", out, re.MULTILINE)


def test_the_help_of_train_lists_every_setting_with_its_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = run(capsys, "train", "--help")
    for section, kinds in section_kinds().items():
        assert f"─ Settings of {section} ─" in out
        for name in (field.name for kind in kinds for field in fields(kind)):
            assert f"│ --{section}.{name} " in out
    for name in TransformerConfig.option_types():
        assert f"│ --model.{name} " in out
    text = one_line(out)
    assert "after warmup, before the schedule decreases it (default: 0.0001)" in text
    assert "--optim.clip_value VALUE" in text
    assert "maximum absolute value of a gradient element; absent: no limit (default: none)" in text
    assert "the size of the vocabulary (default: none) [lstm] number of tokens" in text
    assert "[lstm] number of hidden units (default: 2048)" in text
    assert "[transformer] of the low-rank binding: size of the projections" in text
    assert "binding: an option" not in text
    assert "--model.d_role" not in text  # of the base class, not an option


def test_defaults_that_two_classes_state_are_the_same():
    """Making an `Order` imports numpy and pyarrow, so the verb has defaults of its own."""
    own = {field.name: field.default for field in fields(Generate)}
    assert own["count"] is None  # each task has a default; this is that of mathematics:
    own["count"] = MATHEMATICS_COUNT
    for field in fields(Order):
        if field.name != "splits":
            assert own[field.name] == field.default
    assert Order().splits == with_difficulties(own["splits"], own["difficulties"])


def test_arguments_become_the_fields_of_a_verb():
    verb = parse(
        ["evaluate", "--data=d", "--out", "o", "--modules", "a", "b*", "--seed", "3", "--decode=4"]
    )
    assert verb == Evaluate(
        data=Path("d"),
        out=Path("o"),
        choice=QuestionChoice(modules=("a", "b*"), seed=3),
        work=EvaluationOptions(decode=4),
    )
    verb = parse(["solve", "1 + 1?", "2?", "--json"])
    assert verb == Solve(questions=("1 + 1?", "2?"), json=True)
    assert parse(["solve", "-3 + 5", "-(3)"]) == Solve(questions=("-3 + 5", "-(3)"))
    assert parse(["solve", "--", "--n"]) == Solve(questions=("--n",))
    verb = parse(
        [
            "interpret",
            "roles",
            "--out",
            "o",
            "--layer",
            "-2",
            "--answered",
            "false",
            "--caption=false",
        ]
    )
    assert (verb.options.layer, verb.request.answered, verb.caption) == (-2, False, False)


def test_the_settings_are_printed_as_a_file_that_config_reads(capsys, tmp_path):
    asked = ("--optim.learning_rate=5e-4", "--modules", "numbers__*", "--model.binding", "none")
    code, out, err = run(capsys, "train", "--config=tp-transformer-tiny", "--print_config", *asked)
    assert (code, err) == (0, "")
    file = tmp_path / "mine.yaml"
    file.write_text(out)
    printed = run_config(read(file))
    assert (printed.optim.learning_rate, printed.data.modules) == (5e-4, ("numbers__*",))
    assert printed.model.binding == "none"
    complete = config_values(printed)
    assert {section: fields.keys() for section, fields in read(file).items()} == {
        section: fields.keys() for section, fields in complete.items()
    }
    again = run(capsys, "train", "--config", str(file), "--print_config", "--optim.warmup=7")
    assert yaml.safe_load(again[1])["optim"]["warmup"] == 7


def test_the_last_of_two_values_counts():
    verb = parse(["train", "--config=transformer", "--training.steps=5", "--training.steps", "6"])
    assert verb.resolved().training.steps == 6


def test_bash_completes(capsys, tmp_path):
    """A real shell, with the script that is printed."""
    (tmp_path / "tpt.sh").write_text(run(capsys, "completion", "--shell", "bash")[1])
    for line, expected in {
        "tpt tr": ["train"],
        "tpt data ex": ["export"],
        "tpt train --optim.cl": ["--optim.clip_norm", "--optim.clip_value"],
        "tpt train --optim.schedule co": ["constant", "cosine"],
    }.items():
        words = line.split(" ")
        code = (
            f"source {tmp_path}/tpt.sh; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
            "_tpt; printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        assert sorted(done.stdout.split()) == expected, done.stderr


def test_runs_as_a_module():
    command = [sys.executable, "-m", "tp_transformer", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(__version__)
