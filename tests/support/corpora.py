"""Small corpora of made-up questions, written as others publish them."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
from hypothesis import strategies as st

from tp_transformer.data.mathematics.modules import DIFFICULTIES, MAX_QUESTION
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.vocabulary import CHARACTERS, MAX_ANSWER
from tp_transformer.data.writer import write_store

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "mathematics_dataset-v1.0-sample.tar.gz"

FILES = {
    "train-easy/arithmetic__mixed": 7,
    "train-hard/arithmetic__mixed": 3,
    "train-easy/algebra__linear_1d": 5,
    "interpolate/measurement__conversion": 4,
    "extrapolate/measurement__conversion": 2,
    "extrapolate/arithmetic__mul_big": 1,
}

# Strategies for hypothesis: some rows, and a (split, module, difficulty).
rows = st.lists(
    st.tuples(
        st.text(CHARACTERS, min_size=1, max_size=MAX_QUESTION),
        st.text(CHARACTERS, min_size=1, max_size=MAX_ANSWER),
    ),
    max_size=10,
)
keys = st.one_of(
    st.tuples(
        st.just("train"),
        st.sampled_from(MATHEMATICS.splits["train"]),
        st.sampled_from([*DIFFICULTIES, None]),
    ),
    *(
        st.tuples(st.just(name), st.sampled_from(MATHEMATICS.splits[name]), st.none())
        for name in ("interpolate", "extrapolate")
    ),
)


def pairs(name, count):
    """So many made-up questions and answers, different ones for different names."""
    start = sum(map(ord, name)) % 1000
    return [(f"What is {i} + {start}?", str(i + start)) for i in range(count)]


def text_of(rows):
    """Rows as v1.0 has them."""
    return "".join(f"{question}\n{answer}\n" for question, answer in rows).encode()


def texts(files=None):
    """The files of a small v1.0 corpus."""
    return {f"{name}.txt": text_of(pairs(name, count)) for name, count in (files or FILES).items()}


def write_archive(path, members, root="mathematics_dataset-v1.0/", compress=True, **options):
    """An archive of these members; a TarInfo can stand for a name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **options) as archive:
        for name, content in members.items() if isinstance(members, dict) else members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(root + name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    data = buffer.getvalue()
    path.write_bytes(gzip.compress(data, mtime=0) if compress else data)
    return path


def write_folder(path, files):
    """A folder of these files."""
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def wrapped(text):
    """A text as the Hugging Face copy has it."""
    return repr((text + "\n").encode())


def parquet_of(rows, **columns):
    """A Parquet file with these rows."""
    sink = io.BytesIO()
    table = {"question": [q for q, _ in rows], "answer": [a for _, a in rows], **columns}
    parquet.write_table(pa.table(table), sink)
    return sink.getvalue()


def json_lines_of(rows):
    """A JSON-lines file with these rows."""
    return "".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows).encode()


def make_store(path, segments, rows_per_batch=4):
    """A store with these rows by (split, module, difficulty)."""
    with write_store(path, MATHEMATICS, {"kind": "test"}, rows_per_batch) as writer:
        for (split, module, difficulty), rows in segments.items():
            questions, answers = [q for q, _ in rows], [a for _, a in rows]
            writer.append(split, module, difficulty, questions, answers)
    return path


def segments_of(files=None):
    """The rows of a small v1.0 corpus, by (split, module, difficulty)."""
    found = {}
    for name, count in (files or FILES).items():
        folder, module = name.split("/")
        split, _, difficulty = folder.partition("-")
        found[split, module, difficulty or None] = pairs(name, count)
    return found


def rows_of(store):
    """Every row of a store, by (split, module, difficulty)."""
    found = {}
    for name, split in store.items():
        for segment in split.segments:
            questions, answers = split.rows(segment.rows)
            key = name, segment.module, segment.difficulty
            found[key] = list(zip(questions, answers, strict=True))
    return found
