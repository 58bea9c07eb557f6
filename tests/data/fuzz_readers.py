"""Damages stores and copies of the dataset and reads them; run as a program by test_fuzz.py.

    python tests/data/fuzz_readers.py store|corpus SEED COUNT

A process of its own, so that a segmentation fault or too much memory ends it and is noticed. The
name of a trial is printed before the trial begins.
"""

import gzip
import hashlib
import io
import json
import os
import random
import resource
import shutil
import struct
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from corpora import json_lines_of, make_store, pairs, parquet_of, segments_of, texts, wrapped
from fuzzing import mutate_bytes, mutate_file, tolerated, trials
from tp_transformer.data.export import export
from tp_transformer.data.mathematics.corpus import prepare
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.sampling import Sampler
from tp_transformer.data.store import Store, open_store, verify
from tp_transformer.report.store import render, summarise

MOST_MEMORY = 4 * 2**30  # of addresses; intact files need a fifth of it
VOCABULARY = MATHEMATICS.vocabulary
WRONG_NUMBERS = (0, 1, -1, 2**8, 2**20, 2**30, 2**31 - 1, -(2**31))
# Where the fields of a tar archive's header are, and what they may be overwritten with.
HEADER_FIELDS = {"name": (0, 100), "size": (124, 12), "type": (156, 1), "all": (0, 512)}
WRONG_FIELDS = (b"\0", b"\xff", b"7", b"x", b"\x80\0\0\0\0\0\0\1", b"00000001000\0", b" ", b"/../")


def show(store: Store, _: Path) -> None:
    render(summarise(store), Console(file=io.StringIO(), width=120))


def show_json(store: Store, _: Path) -> None:
    json.dumps(summarise(store), indent=2)


def read_rows(store: Store, _: Path) -> None:
    for split in store.values():
        split.rows(range(len(split)))
        split.lengths(range(len(split)))


def read_tokens(store: Store, _: Path) -> None:
    for split in store.values():
        rows = Sampler(split.segments, batch_size=7, seed=0).rows(3)
        split.tokens(rows, VOCABULARY)
        split.tokens(np.arange(len(split)), VOCABULARY)


def read_examples(store: Store, _: Path) -> None:
    for split in store.values():
        list(split)


def exported(kind: str, name: str) -> Callable[[Store, Path], None]:
    def write(store: Store, folder: Path) -> None:
        export(store, folder / name, format=kind)

    return write


OPERATIONS = (
    *(show, show_json, read_rows, read_tokens, read_examples),
    *(exported("v1.0", "v1"), exported("v1.0", "v1.tar.gz")),
    *(exported("parquet", "parquet"), exported("parquet", "again"), exported("jsonl", "jsonl")),
    lambda store, _: verify(store.path),
)


def fuzz_store(folder: Path, chance: random.Random, name: str) -> None:
    """Damage a file of a store, and use the store in some ways."""
    store = folder / "store"
    shutil.copytree(folder.parent / "intact", store)
    file = chance.choice(sorted(store.glob("*.arrow")) + [store / "store.json"] * 2)
    if file.suffix == ".arrow" and chance.random() < 0.6:
        _damage_column(file, chance)
    else:
        mutate_file(file, chance)
    if chance.random() < 0.8:
        _make_consistent(store)
    for operation in chance.sample(OPERATIONS, 4):
        with tolerated(f"{name} of {file.name}"):
            operation(open_store(store), folder)


def _damage_column(file: Path, chance: random.Random) -> None:
    """Overwrite some numbers of one column: offsets of texts, texts, or numbers of names."""
    data = bytearray(file.read_bytes())
    whole = pa.py_buffer(bytes(data))
    reader = pa.ipc.open_file(pa.BufferReader(whole))
    batch = reader.get_batch(chance.randrange(reader.num_record_batches))
    column = batch.column(chance.choice(("question", "answer") * 3 + ("module", "difficulty")))
    buffer = chance.choice([one for one in column.buffers() if one is not None and one.size])
    start = buffer.address - whole.address
    for _ in range(chance.randrange(1, 4)):
        at = start + 4 * chance.randrange(max(buffer.size // 4, 1))
        (before,) = struct.unpack_from("<i", data, at)
        value = chance.choice((*WRONG_NUMBERS, before + 1, before - 1, before + 100, -before))
        struct.pack_into("<I", data, at, value % 2**32)
    file.write_bytes(data)


def _make_consistent(store: Path) -> None:
    """Hide the damage from the first checks: sizes and hashes are made right."""
    file = store / "store.json"
    try:
        described = json.loads(file.read_bytes())
        for name, split in described["splits"].items():
            data = (store / f"{name}.arrow").read_bytes()
            split["bytes"], split["sha256"] = len(data), hashlib.sha256(data).hexdigest()
        del described["sha256"]
        described["sha256"] = hashlib.sha256(json.dumps(described).encode()).hexdigest()
        file.write_text(json.dumps(described))
    except Exception:
        return  # too damaged for that


def fuzz_corpus(folder: Path, chance: random.Random, name: str) -> None:
    """Damage an archive or a file of the Hugging Face copy, and read it into a store."""
    kind = chance.choice(("tar", "tar", "tar.gz", "parquet", "jsonl"))
    if kind.startswith("tar"):
        source = folder / "v1.tar.gz"
        _damage_archive(source, chance, is_inside=kind == "tar")
    else:
        source = folder / "hub"
        rows = [(wrapped(question), wrapped(answer)) for question, answer in pairs(kind, 20)]
        file = source / "numbers__gcd" / f"train.{kind}"
        file.parent.mkdir(parents=True)
        content = (parquet_of if kind == "parquet" else json_lines_of)(rows)
        file.write_bytes(mutate_bytes(content, chance))
    with tolerated(f"{name} of {kind}"):
        prepare(source, folder / "store", skip_errors=chance.random() < 0.5, rows_per_batch=4)
        verify(folder / "store")


def _damage_archive(path: Path, chance: random.Random, *, is_inside: bool) -> None:
    """An archive with damaged members in sound gzip, or with damaged gzip around it."""
    buffer = io.BytesIO()
    format_ = chance.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    long = "long/" * (chance.random() < 0.5) * 30
    with tarfile.open(fileobj=buffer, mode="w", format=format_) as archive:
        for member, content in texts().items():
            info = tarfile.TarInfo(f"{'' if format_ == tarfile.USTAR_FORMAT else long}v1/{member}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    data = buffer.getvalue()
    if is_inside:
        damage = chance.choice((_damage_header, mutate_bytes))
        data = damage(data, chance)
        data = _with_checksums(data) if chance.random() < 0.6 else data
    zipped = gzip.compress(data, mtime=0)
    path.write_bytes(zipped if is_inside else mutate_bytes(zipped, chance))


def _damage_header(data: bytes, chance: random.Random) -> bytes:
    """The archive with one field of one header overwritten."""
    starts = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    start, length = chance.choice(list(HEADER_FIELDS.values()))
    start += chance.choice(starts)
    types = [*map(str.encode, "01256xgLKSX")]
    value = chance.choice(types) if length == 1 else chance.choice(WRONG_FIELDS)
    value = (value * 512)[:length]
    return data[:start] + value + data[start + length :]


def _with_checksums(data: bytes) -> bytes:
    """The archive with the right checksum in everything that looks like a header."""
    changed = bytearray(data)
    for start in range(0, len(changed) - 511, 512):
        header = changed[start : start + 512]
        if b"ustar" in header[250:270] or b"v1/" in header[:100]:
            header[148:156] = b" " * 8
            changed[start + 148 : start + 156] = b"%06o\0 " % sum(header)
    return bytes(changed)


def main(kind: str, seed: int, count: int) -> None:
    """Run the trials, each in a folder of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    os.fsync = lambda _: None  # no power will fail here
    fuzz = {"store": fuzz_store, "corpus": fuzz_corpus}[kind]
    with tempfile.TemporaryDirectory() as folder:
        make_store(Path(folder) / "intact", segments_of())
        for name, chance in trials(count, seed):
            print(name, flush=True)
            trial_folder = Path(folder) / "trial"
            trial_folder.mkdir()
            fuzz(trial_folder, chance, name)
            shutil.rmtree(trial_folder)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
