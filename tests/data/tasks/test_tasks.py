"""The built-in tasks: their seeds, their splits, and `tpt data generate --task`."""

import pytest

import tp_transformer as tpt
from tp_transformer import cli
from tp_transformer.data.generated import TASKS, resolved_options, task_options, write_task
from tp_transformer.errors import SettingsError
from tp_transformer.settings import preset_names

TASK_NAMES = [name for name in TASKS if name != "mathematics"]
SMALL = {
    "recall": {"count": 300, "test_count": 50},
    "lookup": {"tables": 4, "depth": 2, "deeper_count": 50},
}


def rows_of(name, **options):
    """The rows of a task by split, as pairs of question and answer."""
    found = {}
    for row in TASKS[name](**options).rows():
        found.setdefault(row.split, []).append((row.question, row.answer))
    return found


@pytest.mark.parametrize("name", TASK_NAMES)
def test_a_seed_gives_the_same_questions_and_another_seed_others(name):
    options = SMALL.get(name, {})
    assert rows_of(name, **options) == rows_of(name, **options, seed=0)
    assert rows_of(name, **options) != rows_of(name, **options, seed=1)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_no_test_question_occurs_in_training(name):
    found = rows_of(name, **SMALL.get(name, {}))
    trained = {question for question, _ in found.pop("train")}
    assert found
    for split, rows in found.items():
        assert rows, split
        assert not trained & {question for question, _ in rows}


@pytest.mark.parametrize("name", TASK_NAMES)
def test_the_command_writes_what_the_task_says(name, tmp_path, capsys):
    options = SMALL.get(name, {})
    flags = {"count": "--count", "test_count": "--test-count"}
    given = [f"{flags.get(key, f'--task.{key}')}={value}" for key, value in options.items()]
    cli.main(["data", "generate", "--task", name, f"--out={tmp_path / 'store'}", *given])
    store = tpt.data.open(tmp_path / "store")
    expected = rows_of(name, **options)
    assert {split: len(rows) for split, rows in expected.items()} == {
        split: len(rows) for split, rows in store.items()
    }
    for split, rows in expected.items():
        assert sorted((one.question, one.answer) for one in store[split]) == sorted(rows)
    assert store.source["seed"] == 0
    assert all(store.source[key] == value for key, value in options.items())
    assert f"train {len(expected['train']):,}" in capsys.readouterr().out


@pytest.mark.parametrize("name", TASK_NAMES)
def test_each_task_has_a_preset_and_is_listed(name, capsys):
    assert name in preset_names()
    cli.main(["data", "tasks"])
    printed = capsys.readouterr().out
    assert f"\n{name}: " in printed
    for option in task_options(name).values():
        assert option.metadata["help"]
        assert option.metadata["help"] in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task=scn"], "there is no task 'scn' (did you mean 'scan'?); the tasks are"),
        (["--task=scan", "--count=5"], "scan has no option 'count'; its options are split, seed"),
        (["--task=scan", "--task.split=lenth"], "task.split must be one of simple, length, add-j"),
        (["--task=scan", "--task.splt=length"], "--task.splt (did you mean --task.split?)"),
        (["--task=scan", "--modules=and"], "--modules is an option of mathematics, not of scan"),
        (["--task.split=length"], "the task mathematics has no option 'split'"),
        (["--task=recall", "--task.pairs=3"], "pairs must be 4 or more, not 3"),
        (["--task=recall", "--task.values=1"], "values must be 2 or more, not 1"),
        (["--task=recall", "--task.parts=2"], "there are 4 keys, too few for lists of 8"),
        (
            ["--task=recall", "--task.parts=3", "--task.values=2", "--count=100000"],
            "there are not enough different questions",
        ),
        (["--task=lookup", "--task.depth=1"], "depth must be 2 or more, not 1"),
        (["--task=lookup", "--task.bits=60"], "take fewer tables, fewer bits or less depth"),
        (["--task=lookup", "--task.test_share=1"], "test_share must be above 0 and below 1"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["data", "generate", f"--out={tmp_path / 'store'}", *arguments])
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in said
    assert said.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_options_from_python_are_checked(tmp_path):
    assert resolved_options("scan", {"split": "length"}) == {"split": "length", "seed": 0}
    with pytest.raises(SettingsError, match="seed must be 0 or more"):
        write_task(tmp_path / "store", "scan", seed=-1)
    with pytest.raises(SettingsError, match=r"task\.split must be .*not None"):
        write_task(tmp_path / "store", "scan", split=None)


def test_the_rows_of_a_module_are_in_random_order(tmp_path):
    """Training holds out the last ones for validation."""
    store = write_task(tmp_path / "store", "scan", split="length")
    train = store["train"]
    last = [train[row].question for row in train.modules["after"][-400:]]
    verbs = {verb: sum(question.startswith(verb) for question in last) for verb in ("walk", "turn")}
    assert min(verbs.values()) > 40  # in the order of the grammar, all would begin with turn
