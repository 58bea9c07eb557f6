"""A question is a function of its address: not of the process, the order, or what came before."""

import itertools
import json
import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

import tp_transformer as tpt
from tp_transformer.data.mathematics.modules import EXTRAPOLATE, KEYS
from tp_transformer.data.vocabulary import CHARACTERS
from tp_transformer.errors import SettingsError, UserError

pytest.importorskip("mathematics_dataset")

from tp_transformer.data.mathematics import deepmind
from tp_transformer.data.mathematics.produce import (
    Chunk,
    GeneratedExample,
    generate,
    generate_chunk,
    generate_chunks,
    match_files,
    question_at,
)
from tp_transformer.runtime.processes import workers

# Draws the questions at the addresses on standard input, shuffled, and prints them as JSON.
PROCESS = """
import json, random, sys
from tp_transformer.data.mathematics.produce import question_at
addresses = json.load(sys.stdin)
random.Random(int(sys.argv[1])).shuffle(addresses)
fast = sys.argv[2] == "fast"
found = [[a, question_at(a[1], a[0], seed=3, index=a[2], fast=fast)] for a in addresses]
print(json.dumps(sorted([*a, e.question, e.answer] for a, e in found)))
"""


def in_a_process(addresses, hash_seed, path="fast"):
    result = subprocess.run(
        [sys.executable, "-c", PROCESS, str(hash_seed), path],
        input=json.dumps(addresses),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
    )
    return json.loads(result.stdout)


def here(addresses, *, fast=True):
    """The same in this process, whose strings hash as they happen to."""
    examples = [(a, question_at(a[1], a[0], seed=3, index=a[2], fast=fast)) for a in addresses]
    return sorted([*address, e.question, e.answer] for address, e in examples)


def test_any_process_any_hash_seed_any_order():
    addresses = [(split, module, index) for split, module in KEYS for index in (0, 7)]
    assert in_a_process(addresses, 1) == here(addresses)


def test_deepminds_own_code_too():
    """The leaks are closed in the adapter, not by the replacements of `fast.py`."""
    addresses = [
        (split, module, index)
        for split, module in KEYS
        for index in range(3)
        if (split == "train-hard" and "composed" in module) or "prime" in module
    ]
    assert in_a_process(addresses, 3, "slow") == here(addresses, fast=False)


def test_alone_or_as_the_fiftieth():
    for module in ("numbers__gcd_composed", "arithmetic__mixed", "polynomials__expand"):
        fifty = list(generate(module, split="train-hard", count=50, seed=5))
        assert question_at(module, "train-hard", seed=5, index=49) == fifty[49]
        assert list(generate(module, split="train-hard", count=10, start=40, seed=5)) == fifty[40:]


def test_factors_do_not_depend_on_what_was_factored_before():
    sympy = deepmind.generator().files["sample.number"].sympy
    small, large = 1_000_003, 1_000_033
    product = small * large
    vars(sympy)["factor_cache"].cache_clear()
    alone = list(sympy.factorint(product))
    vars(sympy)["factor_cache"][product] = large  # as after factoring a multiple of it
    assert list(sympy.factorint(product)) == alone == [small, large]


def test_other_addresses_give_other_questions():
    def question(**changes):
        address = {"module": "arithmetic__mixed", "split": "train-hard", "seed": 0, "index": 0}
        return question_at(**(address | changes)).question

    changed = [
        question(),
        question(seed=1),
        question(index=1),
        question(attempt=1),
        question(split="train-medium"),
        question(seed=1, index=1),
    ]
    assert len(set(changed)) == len(changed)
    many = [e.question for e in generate("arithmetic__mixed", split="train-hard", count=100)]
    assert len(set(many)) > 95


def test_the_callers_chance_is_left_alone():
    sympy_random = pytest.importorskip("sympy.core.random")
    before = random.getstate(), np.random.get_state()[1].tolist(), sympy_random.rng.getstate()  # noqa: NPY002
    for module in ("numbers__is_prime", "algebra__polynomial_roots", "comparison__pair"):
        question_at(module, "interpolate", index=1)
        question_at(module, "interpolate", index=1, fast=False)
    after = random.getstate(), np.random.get_state()[1].tolist(), sympy_random.rng.getstate()  # noqa: NPY002
    assert before == after


def test_other_threads_do_not_disturb():
    expected = list(generate("algebra__linear_*", split="train-easy", count=10))
    stop, results = threading.Event(), {}

    def disturb():
        while not stop.is_set():
            random.random()
            np.random.rand()  # noqa: NPY002

    def draw(name):
        results[name] = list(generate("algebra__linear_*", split="train-easy", count=10))

    noise = threading.Thread(target=disturb)
    noise.start()
    both = [threading.Thread(target=draw, args=(name,)) for name in "ab"]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    stop.set()
    noise.join()
    assert results == {"a": expected, "b": expected}


def test_lengths_and_characters_of_the_published_data():
    for split, module in KEYS:
        for example in generate(module, split=split, count=3, seed=11):
            assert 0 < len(example.question) <= 160
            assert 0 < len(example.answer) <= 30
            assert set(example.question + example.answer) <= set(CHARACTERS), example


@pytest.mark.parametrize("fast", [True, False])
def test_a_draw_that_breaks_an_assertion_of_deepminds_is_drawn_again(fast):
    place = {"seed": 11, "index": 168}
    module = "arithmetic__add_sub_multiple_longer"
    address = deepmind.Address(module=module, split=EXTRAPOLATE, **place)
    generator = deepmind.generator()
    with generator.session(), pytest.raises(AssertionError):
        generator.draw(EXTRAPOLATE, module, address.entropy(0))
    question = question_at(module, EXTRAPOLATE, **place, fast=fast).question
    with generator.session():
        assert generator.draw(EXTRAPOLATE, module, address.entropy(1))[0] == question


def test_difficulties_are_deepminds_thirds():
    published = pytest.importorskip("mathematics_dataset.generate")
    for level in range(3):
        for limits in [(3, 10), (4, 16), (0.5, 7.25)]:
            assert deepmind._third(level, limits) == published._make_entropy_fn(level, 3)(limits)


def test_examples_come_lazily_in_address_order():
    endless = tpt.data.generate("measurement__*", split="train-easy", count=10**12, seed=0)
    first = list(itertools.islice(endless, 3))
    assert first == [
        question_at("measurement__conversion", "train-easy", index=i) for i in range(3)
    ]
    assert all(
        isinstance(example, GeneratedExample) and example.difficulty == "easy" for example in first
    )
    two = list(tpt.data.generate("measurement__*", split="interpolate", count=1))
    assert [example.module for example in two] == ["measurement__conversion", "measurement__time"]
    assert two[0].difficulty is None


def test_chunks_cover_each_index_once():
    chunks = list(Chunk("algebra__linear_1d", "train-easy", 0, 10, 460).cut(200))
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(10, 210), (210, 410), (410, 460)]


@pytest.mark.parametrize("n_workers", [1, 2])
def test_workers_give_the_same(n_workers):
    chunks = [
        chunk
        for split, module in match_files("probability__*", ["train-easy", "interpolate"])
        for chunk in Chunk(module, split, 0, 0, 6).cut(4)
    ]
    found = list(generate_chunks(chunks, workers(n_workers)))
    assert found == [generate_chunk(chunk) for chunk in chunks]
    assert [len(questions) for questions in found] == [4, 2] * 4
    by_name = list(generate("probability__*", split="train-easy", count=6, n_workers=n_workers))
    assert by_name == [e for questions in found[:4] for e in questions]


def test_errors_are_one_clear_line(monkeypatch):
    with pytest.raises(SettingsError, match="did you mean 'arithmetic__mixed'"):
        question_at("arithmetic__mixd", "interpolate")
    with pytest.raises(SettingsError, match="has no module"):
        question_at("arithmetic__mul", EXTRAPOLATE)
    with pytest.raises(SettingsError, match="are extrapolated"):
        generate("calculus__*", split=EXTRAPOLATE, count=1)
    with pytest.raises(SettingsError, match="negative"):
        generate("calculus__*", split="interpolate", count=-1)
    monkeypatch.setitem(sys.modules, "mathematics_dataset", None)
    with pytest.raises(UserError, match=r"pip install 'tp-transformer\[generate\]'"):
        deepmind._import_package()
