"""SCAN: the published counts, and an interpreter of its own that reads commands back."""

import pytest

from tp_transformer.data.generated import TASKS
from tp_transformer.data.tasks.scan import commands

COUNTS = {
    "simple": {"train": 16_728, "test": 4_182},
    "length": {"train": 16_990, "test": 3_920},
    "add-jump": {"train": 14_670, "test": 7_706},
}


def actions_of(command):
    """The actions of a command, by taking its words apart from the outside in."""
    for word in ("and", "after"):
        first, found, second = command.partition(f" {word} ")
        if found:
            before, behind = (first, second) if word == "and" else (second, first)
            return actions_of(before) + actions_of(behind)
    for word, times in (("twice", 2), ("thrice", 3)):
        if command.endswith(f" {word}"):
            return actions_of(command.removesuffix(f" {word}")) * times
    verb, *rest = command.split(" ")
    act = [] if verb == "turn" else [f"I_{verb.upper()}"]
    turn = [f"I_TURN_{rest[-1].upper()}"] if rest else []
    if "opposite" in rest:
        return turn + turn + act
    return (turn + act) * (4 if "around" in rest else 1)


def test_the_grammar_has_the_published_number_of_commands():
    found = list(commands())
    assert len(found) == len({command.text for command in found}) == 20_910
    for command in found:
        assert list(command.actions) == actions_of(command.text)


@pytest.mark.parametrize("split", COUNTS)
def test_the_published_counts(split):
    rows = list(TASKS["scan"](split=split).rows())
    counts = {name: sum(row.split == name for row in rows) for name in ("train", "test")}
    assert counts == COUNTS[split]
    assert {row.question for row in rows} == {command.text for command in commands()}


def test_what_the_splits_hold_apart():
    lengths = {"train": [], "test": []}
    for row in TASKS["scan"](split="length").rows():
        lengths[row.split].append(len(row.answer.split()))
    assert (max(lengths["train"]), min(lengths["test"]), max(lengths["test"])) == (22, 24, 48)
    jumps = [row for row in TASKS["scan"](split="add-jump").rows() if "jump" in row.question]
    trained = [row.question for row in jumps if row.split == "train"]
    assert trained == ["jump"] * 1_467
    assert all(row.question != "jump" for row in jumps if row.split == "test")
