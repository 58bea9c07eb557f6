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
from tp_transformer.foundation.ranges import Seed

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
    found = list(commands())
    texts = [text for command in found for text in (command.text, " ".join(command.actions))]
    return Task(
        name="scan" if split == "simple" else f"scan-{split}",
        vocabulary=Vocabulary.of(texts, "words"),
        splits={TRAIN: _MODULES, TEST: _MODULES},
        rows=lambda: _rows(found, _are_tested(found, split, seed), repeat_jump=split == "add-jump"),
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


def _are_tested(found: Sequence[Command], split: str, seed: int) -> list[bool]:
    """Return for each command whether it is a test question."""
    if split == "length":
        return [len(command.actions) > _MOST_TRAINED_ACTIONS for command in found]
    if split == "add-jump":
        return ["jump" in command.text and command.text != "jump" for command in found]
    order = np.random.default_rng(seed).permutation(len(found))
    return (order >= round(len(found) * _TRAIN_SHARE)).tolist()


def _rows(found: Sequence[Command], are_tested: list[bool], *, repeat_jump: bool) -> Iterator[Row]:
    for command, is_tested in zip(found, are_tested, strict=True):
        answer = " ".join(command.actions)
        yield Row(TEST if is_tested else TRAIN, command.module, command.text, answer)
    if repeat_jump:
        n_others = are_tested.count(False) - 1
        n_jumps = round(n_others * _JUMP_SHARE / (1 - _JUMP_SHARE))
        yield from [Row(TRAIN, "single", "jump", "I_JUMP")] * (n_jumps - 1)
