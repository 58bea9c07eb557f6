"""A split as a sequence, as a dataset of torch and of Hugging Face; stores in notebooks."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

import tp_transformer as tpt
from corpora import make_store, segments_of
from tp_transformer.data.task import Task
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.data.writer import write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tpt.data.open(make_store(tmp_path_factory.mktemp("data") / "store", segments_of()))


@pytest.fixture(scope="module")
def split(store):
    return store["train"]


def test_a_split_is_a_sequence(split):
    rows = list(split)
    assert len(rows) == len(split) == 15
    assert split[-1] == rows[-1]
    assert split[-15] == rows[0] == split[np.int64(0)]
    for some in (slice(3), slice(2, 12, 3), slice(None, None, -1), slice(-4, None), slice(99, 100)):
        assert split[some] == rows[some]
    assert list(reversed(split)) == rows[::-1]
    assert rows[4] in split
    assert split.index(rows[4]) == 4
    assert "no example" not in split
    for row in (15, -16):
        with pytest.raises(IndexError, match="rows 0 to 14"):
            split[row]
    with pytest.raises(TypeError):
        split["x"]


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_split_is_a_dataset_of_torch(split, n_workers):
    model = tpt.build("tp-transformer-tiny")
    loader = DataLoader(
        split,
        batch_size=4,
        shuffle=True,
        num_workers=n_workers,
        collate_fn=model.collate,
        generator=torch.Generator().manual_seed(1),
    )
    batches = list(loader)
    assert [len(batch) for batch in batches] == [4, 4, 4, 3]
    decode = split.task.vocabulary.decode
    found = [text for batch in batches for text in decode(batch.source[:, 1:].numpy())]
    questions = [example.question for example in split]
    assert sorted(found) == sorted(questions)
    assert found != questions  # shuffled
    assert model.loss(batches[0]).mean.isfinite()


def test_collate_is_the_batch_of_the_texts(split):
    examples = split[:3]
    questions, answers = split.rows(range(3))
    own = Vocabulary.of("".join(sorted(set("".join(questions + answers)))))
    for vocabulary in (split.task.vocabulary, own):
        batch = tpt.build("tp-transformer-tiny", vocabulary=vocabulary).collate(examples)
        expected = tpt.Batch.from_text(questions, answers, vocabulary)
        assert batch.source.equal(expected.source)
        assert batch.target_output.equal(expected.target_output)


def test_a_split_is_a_dataset_of_hugging_face(store):
    for split in store.values():
        found = split.to_hf()
        assert len(found) == len(split)
        assert found["question"][:] == [example.question for example in split]
        assert found["module"][:] == [example.module for example in split]
        assert found[-1] == vars(split[-1])


def test_the_texts_are_mapped_not_copied(tmp_path):
    rows = [(f"{'What is this? ' * 10}{number}", "7" * 20) for number in range(2000)]
    path = make_store(tmp_path / "s", {("train", "numbers__gcd", "easy"): rows}, rows_per_batch=500)
    split = tpt.data.open(path)["train"]
    before = pa.total_allocated_bytes()
    found = split.to_hf()
    assert found[1999]["question"] == rows[1999][0]
    assert pa.total_allocated_bytes() - before < split.path.stat().st_size / 2


def test_stores_and_splits_in_notebooks(tmp_path):
    task = Task(
        name="marks",
        vocabulary=Vocabulary.of("<i>&x"),
        splits={"train": ("<b>",), "test": ("<b>",)},
    )
    with write_store(tmp_path / "<u>", task, {}) as writer:
        for name in task.splits:
            writer.append(name, "<b>", None, ["<i>x" * 30] * 50, ["&"] * 50)
    store = tpt.data.open(tmp_path / "<u>")
    page = store._repr_html_()
    assert "&lt;u&gt;: marks" in page
    assert "<td>train</td><td>50</td><td>1</td><td>120</td><td>1</td>" in page
    page = store["test"]._repr_html_()
    assert "Split test: 50 rows" in page
    assert page.count("<tr>") == 6
    assert "&lt;i&gt;x" in page
    assert "<td>&amp;</td>" in page
    for text in (page, store._repr_html_()):
        assert not any(tag in text for tag in ("<b>x", "<i>", "<u>", "http"))
