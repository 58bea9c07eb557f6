"""Lookup: tables are one to one, compositions agree with them, and splits hold depths apart."""

from itertools import product

import pytest

from tp_transformer.data.generated import TASKS


def read(question):
    string, *tables = question.split(" ")
    return string, tuple(tables)


@pytest.fixture(scope="module")
def rows():
    found = {}
    for row in TASKS["lookup"](deeper_count=500).rows():
        assert row.module == f"depth-{len(row.question.split()) - 1}"
        found.setdefault(row.split, []).append((row.question, row.answer))
    return found


def test_compositions_are_their_tables_one_after_another(rows):
    atomic = {question: answer for question, answer in rows["train"] if question.count(" ") == 1}
    strings = ["".join(bits) for bits in product("01", repeat=3)]
    assert len(atomic) == 8 * 8
    for number in range(8):
        assert sorted(atomic[f"{string} t{number + 1}"] for string in strings) == strings
    for question, answer in (row for split in rows.values() for row in split):
        string, tables = read(question)
        results = []
        for table in tables:
            string = atomic[f"{string} {table}"]
            results.append(string)
        assert answer == " ".join(results)


def test_without_steps_an_answer_is_the_last_result():
    options = {"tables": 3, "depth": 2, "deeper_count": 20}
    pairs = (list(TASKS["lookup"](**options, steps=steps).rows()) for steps in (True, False))
    for full, short in zip(*pairs, strict=True):
        assert full.question == short.question
        assert full.answer.split(" ")[-1] == short.answer


def test_what_the_splits_hold_apart(rows):
    tables = {split: {read(question)[1] for question, _ in own} for split, own in rows.items()}
    assert not tables["train"] & tables["test"]
    everything = tables["train"] | tables["test"]
    assert len(everything) == 8 + 8**2 + 8**3
    assert {len(one) for one in tables["test"]} == {2, 3}
    assert {len(one) for one in tables["deeper"]} == {4, 5}
    assert len(rows["train"]) + len(rows["test"]) == 8 * len(everything)
    assert 0.05 < len(tables["test"]) / len(everything) < 0.15
    assert len(rows["deeper"]) == len(set(rows["deeper"])) == 1000


def test_few_deeper_questions_are_all_taken():
    options = {"tables": 2, "bits": 1, "depth": 2, "deeper": 1, "test_share": 0.5}
    rows = [row for row in TASKS["lookup"](**options).rows() if row.split == "deeper"]
    assert len({row.question for row in rows}) == len(rows) == 2 * 2**3
