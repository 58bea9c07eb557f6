"""SCAN: commands in a small grammar, to be translated to sequences of actions.

Lake and Baroni (2018), "Generalization without systematicity". The grammar has 20,910 commands:

    command  = sentence | sentence "and" sentence | sentence "after" sentence
    sentence = phrase | phrase "twice" | phrase "thrice"
    phrase   = verb | verb side | verb "opposite" side | verb "around" side

A verb is walk, look, run, jump or turn; turn always has a side.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from tp_transformer.data.task import TASKS, TRAIN, Row, Task
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.ranges import Seed

TEST = "test"
_VERBS = ("walk", "look", "run", "jump", "turn")
_SIDES = ("left", "right")
_REPETITIONS = {"": 1, " twice": 2, " thrice": 3}
_MODULES = ("single", "and", "after")  # how a command joins its sentences
_TRAIN_SHARE = 0.8  # of the simple split
_MOST_TRAINED_ACTIONS = 22  # of the length split
_JUMP_SHARE = 0.1  # of the training rows of the add-jump split, which are "jump" alone


class Command(NamedTuple):
    """A command, its actions, and how it joins its sentences."""

    module: str
    text: str
    actions: tuple[str, ...]


@TASKS.register("scan")
def scan(*, split: Literal["simple", "length", "add-jump"] = "simple", seed: Seed = 0) -> Task:
    """Translate commands such as "jump twice and walk left" to actions (Lake and Baroni, 2018).

    Args:
        split: simple trains on a random 80% of the commands; length trains on commands of at most
            22 actions and tests on longer ones; add-jump trains on "jump" alone and on the commands
            without it, and tests on the other commands with it
        seed: seed of the simple split
    """
    all_commands = list(commands())
    texts = [text for command in all_commands for text in (command.text, " ".join(command.actions))]
    return Task(
        name="scan" if split == "simple" else f"scan-{split}",
        vocabulary=Vocabulary.of(texts, "words"),
        splits={TRAIN: _MODULES, TEST: _MODULES},
        rows=lambda: _rows(all_commands, split, seed),
    )


def commands() -> Iterator[Command]:
    """Yield each command of the grammar."""
    sentences = [
        (phrase + suffix, actions * times)
        for phrase, actions in _phrases()
        for suffix, times in _REPETITIONS.items()
    ]
    for text, actions in sentences:
        yield Command("single", text, actions)
    for (first, first_actions), (second, second_actions) in product(sentences, repeat=2):
        yield Command("and", f"{first} and {second}", first_actions + second_actions)
        yield Command("after", f"{first} after {second}", second_actions + first_actions)


def _phrases() -> Iterator[tuple[str, tuple[str, ...]]]:
    for verb in _VERBS:
        act = () if verb == "turn" else (f"I_{verb.upper()}",)
        if act:
            yield verb, act
        for side in _SIDES:
            turn = (f"I_TURN_{side.upper()}",)
            yield f"{verb} {side}", turn + act
            yield f"{verb} opposite {side}", turn * 2 + act
            yield f"{verb} around {side}", (turn + act) * 4


def _rows(all_commands: Sequence[Command], split: str, seed: int) -> Iterator[Row]:
    are_tested = _are_tested(all_commands, split, seed)
    for command, is_tested in zip(all_commands, are_tested, strict=True):
        answer = " ".join(command.actions)
        yield Row(TEST if is_tested else TRAIN, command.module, command.text, answer)
    if split == "add-jump":
        n_others = are_tested.count(False) - 1
        n_jumps = round(n_others * _JUMP_SHARE / (1 - _JUMP_SHARE))
        yield from [Row(TRAIN, "single", "jump", "I_JUMP")] * (n_jumps - 1)


def _are_tested(all_commands: Sequence[Command], split: str, seed: int) -> list[bool]:
    if split == "length":
        return [len(command.actions) > _MOST_TRAINED_ACTIONS for command in all_commands]
    if split == "add-jump":
        return ["jump" in command.text and command.text != "jump" for command in all_commands]
    order = np.random.default_rng(seed).permutation(len(all_commands))
    return (order >= round(len(all_commands) * _TRAIN_SHARE)).tolist()
