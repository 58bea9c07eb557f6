"""Reading the published dataset: everything arrives, byte for byte, or is named as missing."""

import gzip
import io
import re
import tarfile
import tracemalloc
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpora import (
    FILES,
    SAMPLE,
    json_lines_of,
    pairs,
    parquet_of,
    rows_of,
    segments_of,
    text_of,
    texts,
    wrapped,
    write_archive,
    write_folder,
)
from corpora import rows as some_rows
from tp_transformer.data import readers
from tp_transformer.data.mathematics.corpus import PARQUET, identify, prepare, unwrap
from tp_transformer.data.vocabulary import CHARACTERS
from tp_transformer.errors import CorpusError, StoreError

MIXED = "train-easy/arithmetic__mixed.txt"


def prepared(tmp_path, source, **options):
    return prepare(source, tmp_path / "store", rows_per_batch=4, **options)


@pytest.mark.parametrize("kind", ["archive", "plain tar", "folder", "folder above"])
def test_v1_is_read_from_archive_and_folder(tmp_path, kind):
    if kind == "folder":
        source = write_folder(tmp_path / "v1.0", texts())
    elif kind == "folder above":
        files = {f"mathematics_dataset-v1.0/{name}": text for name, text in texts().items()}
        source = write_folder(tmp_path / "v1.0", files)
    else:
        source = write_archive(tmp_path / "v1.tar.gz", texts(), compress=kind == "archive")
    store = prepared(tmp_path, source)
    assert rows_of(store) == segments_of()
    assert store.skipped == []
    assert store.source["name"] == source.name
    assert store.source["kind"] == ("folder of v1.0" if "folder" in kind else "v1.0 archive")


def test_the_order_of_an_archive_does_not_matter(tmp_path):
    members = texts()
    first = prepare(write_archive(tmp_path / "a.tar.gz", members), tmp_path / "a")
    members = dict(reversed(members.items()))
    second = prepare(write_archive(tmp_path / "b.tar.gz", members), tmp_path / "b")
    assert [s.segments for s in first.values()] == [s.segments for s in second.values()]
    assert {n: s.digest for n, s in first.items()} == {n: s.digest for n, s in second.items()}


@settings(max_examples=40, deadline=None)
@given(
    rows=some_rows.filter(len),
    block=st.integers(2, 400),
    newline=st.sampled_from([b"\n", b"\r\n"]),
    ended=st.booleans(),
)
def test_blocks_may_end_anywhere(tmp_path_factory, rows, block, newline, ended):
    folder = tmp_path_factory.mktemp("corpus")
    text = text_of(rows).replace(b"\n", newline)
    text = text if ended else text.removesuffix(newline)
    source = write_folder(folder / "v1.0", {MIXED: text})
    zipped = write_archive(folder / "v1.tar.gz", {MIXED: text})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BLOCK_BYTES", block)
        patch.setattr(readers, "_READ_BYTES", block)
        for corpus in (source, zipped):
            store = prepare(corpus, folder / "store", rows_per_batch=4)
            assert rows_of(store) == {("train", "arithmetic__mixed", "easy"): rows}


def hub_files(kind, naming):
    """The Hugging Face copy with one of the ways of naming its files."""
    write = parquet_of if kind == "parquet" else json_lines_of
    files, expected = {}, {}
    for module in ("arithmetic__mixed", "numbers__gcd"):
        for split, stored in (("train", "train"), ("test", "interpolate")):
            rows = pairs(module + split, 9)
            expected[stored, module, None] = rows
            wrap = [(wrapped(question), wrapped(answer)) for question, answer in rows]
            files[naming.format(module=module, split=split) + f".{kind}"] = write(wrap)
    return files, expected


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    "naming",
    [
        "{module}/{split}-00000-of-00001",
        "{module}/{split}-00000-of-00001-5d5f11ab29564424",
        "{module}/{split}/0000",
        "{module}/{split}",
        "{split}/{module}",
        "data/{module}-{split}",
        "hub/copy/{module}.{split}",
        "{module}_{split}",
    ],
)
def test_the_hugging_face_copy_is_read(tmp_path, kind, naming):
    files, expected = hub_files(kind, naming)
    files |= {"README.md": b"#", ".gitattributes": b""}
    store = prepared(tmp_path, write_folder(tmp_path / "hub", files))
    assert rows_of(store) == expected
    assert [(entry["file"], entry["rows"]) for entry in store.skipped] == [(".gitattributes", 0)]


@given(st.lists(st.text(CHARACTERS, max_size=30), min_size=1, max_size=10))
def test_unwrapping_undoes_repr(texts):
    column = pa.array([repr(f"{text}\n".encode()) for text in texts])
    assert unwrap(column).to_pylist() == texts


def test_unwrapping_leaves_other_texts_alone():
    plain = ["b", "b'", "What is 'b'?", "b'x\"", "", "x\\n", "b'\\x'", "'", "-1\n"]
    assert unwrap(pa.array(plain)).to_pylist() == [*plain[:8], "-1"]


def test_shards_are_read_in_their_order_and_missed(tmp_path):
    name = "arithmetic__mixed/train-{:05}-of-00002.parquet"
    files = {name.format(i): parquet_of(pairs(str(i), 3)) for i in (0, 1)}
    store = prepared(tmp_path, write_folder(tmp_path / "hub", files))
    rows = rows_of(store)["train", "arithmetic__mixed", None]
    assert rows == pairs("0", 3) + pairs("1", 3)
    (tmp_path / "hub" / name.format(0)).unlink()
    with pytest.raises(CorpusError, match=r"train-00001-of-00002.parquet: part 0 of this file is"):
        prepared(tmp_path, tmp_path / "hub")


def test_a_module_with_an_unknown_name_in_a_path():
    with pytest.raises(CorpusError, match=r"has no module 'numbers__gdc' \(did you mean 'numbers"):
        identify("numbers__gdc/train-00000-of-00001.parquet", PARQUET)
    with pytest.raises(CorpusError, match="unknown split 'validation'"):
        identify("numbers__gcd/validation-00000-of-00001.parquet", PARQUET)
    with pytest.raises(CorpusError, match="names no split"):
        identify("numbers__gcd/0000.parquet", PARQUET)


def link(name, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    return member


ROW = text_of([("What is 1 + 1?", "2")])
# The file's name and content, what is said about it and its line, and how many rows are left out.
FAULTS = {
    "odd": (MIXED, ROW + b"What?\n", "line 3: a question without an answer", 1),
    "long question": (MIXED, ROW + b"1" * 161 + b"\n1\n", "line 3: question of more than 160", 1),
    "long answer": (MIXED, ROW + b"1\n" + b"1" * 31 + b"\n", "line 4: answer of more than 30", 1),
    "empty question": (MIXED, ROW + b"\n1\n", "line 3: empty question", 1),
    "empty answer": (MIXED, ROW + b"1\n\n", "line 4: empty answer", 1),
    "foreign": (MIXED, ROW + b"B?\n1\n", "line 3: question with .* the 69: 'B'", 1),
    "foreign answer": (MIXED, ROW + b"1\n\xff\n", r"line 4: answer with .* outside the 69", 1),
    "accent": (MIXED, ROW + "é\n1\n".encode(), "line 3: question with .* the 69: 'é' in 'é'", 1),
    "carriage return": (MIXED, b"What\r?\n1\n" + ROW, r"line 1: .*: '\\r' in", 1),
    "no newline": (MIXED, ROW + b"1" * 3_000_000, "line 3: a line of more than 1,048,576 bytes", 0),
    "empty": (MIXED, b"", "line 1: an empty file", 0),
    "unknown module": ("train-easy/numbers__gdc.txt", ROW, "line 1: train-easy has no module", 1),
    "train only": ("extrapolate/numbers__gcd.txt", ROW, "line 1: extrapolate has no mod", 1),
    "unknown split": ("train/numbers__gcd.txt", ROW * 2, "line 1: unknown split 'train'", 2),
    "outside": ("../train-easy/numbers__gcd.txt", ROW, "line 1: a path that leaves the arc", 1),
    "absolute": (tarfile.TarInfo("/train-easy/numbers__gcd.txt"), ROW, "line 1: a path that", 1),
    "link": (link("train-easy/numbers__gcd.txt"), b"", "line 1: a link or device", 0),
    "hard link": (link("train-easy/x.txt", tarfile.LNKTYPE), b"", "line 1: a link or device", 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named_with_file_and_line(tmp_path, fault):
    name, content, message, n_rows = FAULTS[fault]
    members = [("train-easy/algebra__linear_1d.txt", ROW), (name, content)]
    source = write_archive(tmp_path / "v1.tar.gz", members)
    file = name.name if isinstance(name, tarfile.TarInfo) else name
    with pytest.raises(CorpusError, match=f"{file}, {message}") as error:
        prepared(tmp_path, source)
    assert "\n" not in str(error.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["v1.tar.gz"]
    store = prepared(tmp_path, source, skip_errors=True)
    (entry,) = store.skipped
    assert entry["file"].endswith(file)
    assert entry["rows"] == n_rows
    kept = sum(segment.count for segment in store["train"].segments)
    has_row = name == MIXED and content
    assert kept == 1 + bool(has_row)


def test_duplicates_are_an_error(tmp_path):
    members = [(MIXED, ROW), ("train-easy/numbers__gcd.txt", ROW), (MIXED, ROW * 3)]
    source = write_archive(tmp_path / "v1.tar.gz", members)
    message = f"{MIXED}, line 1: the same split and module as mathematics_dataset-v1.0/{MIXED}"
    with pytest.raises(CorpusError, match=message):
        prepared(tmp_path, source)
    store = prepared(tmp_path, source, skip_errors=True)
    assert len(store["train"]) == 2
    assert store.skipped[0]["rows"] == 3
    again = write_archive(tmp_path / "again.tar.gz", [(MIXED, ROW), (MIXED, ROW)])
    with pytest.raises(CorpusError, match="the same split and module"):
        prepared(tmp_path, again)


@pytest.mark.parametrize(
    ("one", "other"), [("", ""), ("-00000-of-00001", "-00000-of-00001"), ("", "-00001-of-00002")]
)
def test_duplicates_of_other_kinds_are_an_error(tmp_path, one, other):
    hub = {f"numbers__gcd/test{one}.jsonl": json_lines_of([("1", "2")])}
    hub[f"numbers__gcd/test{other}.parquet"] = parquet_of([("1", "2")])
    with pytest.raises(CorpusError, match="the same split and module"):
        prepared(tmp_path, write_folder(tmp_path / "hub", hub))


def test_every_fault_of_a_file_is_counted(tmp_path):
    text = ROW + b"\n1\n" + ROW + b"B\n\n" + b"1\n" + b"2" * 31 + b"\n" + b"B\n1\n" + ROW
    store = prepared(
        tmp_path, write_archive(tmp_path / "v1.tar.gz", {MIXED: text}), skip_errors=True
    )
    assert len(store["train"]) == 3
    found = {entry["reason"]: (entry["rows"], entry["first_line"]) for entry in store.skipped}
    assert found == {
        "empty question": (1, 3),
        "question with a character outside the 69": (2, 7),
        "empty answer": (0, 8),  # the same row, already counted
        "answer of more than 30 characters": (1, 10),
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"question": "1", "answer": \n', "not a JSON object"),
        (b'{"question": "b\'\\\\\xee\'", "answer": "1"}\n', "not a JSON object"),
        (b'{"question": 1, "answer": "1"}\n', "not a JSON object"),
        (b"[]\n", "not a JSON object"),
        (b"\n", "not a JSON object"),
        (b'{"question": "1"}\n', "empty answer"),
        (b'{"question": null, "answer": "1"}\n', "empty question"),
        (b'{"question": "B", "answer": "1"}\n', "outside the 69"),
        (b'{"question": "\\ud800", "answer": "1"}\n', "not a JSON object"),
        (b'{"question": "1", "answer": "1", "difficulty": "odd"}\n', "unknown difficulty 'odd'"),
    ],
)
def test_faults_of_json_lines(tmp_path, line, message):
    good = json_lines_of(pairs("x", 5))
    files = {"numbers__gcd/train.jsonl": good + line + good}
    source = write_folder(tmp_path / "hub", files)
    with pytest.raises(CorpusError, match=rf"numbers__gcd/train.jsonl, line 6: .*{message}"):
        prepared(tmp_path, source)
    store = prepared(tmp_path, source, skip_errors=True)
    assert rows_of(store)["train", "numbers__gcd", None] == pairs("x", 5) * 2
    (entry,) = store.skipped
    assert (entry["rows"], entry["first_line"]) == (1, 6)


def test_a_link_to_nothing_is_named(tmp_path):
    source = write_folder(tmp_path / "v1.0", texts())
    (source / "train-easy" / "numbers__gcd.txt").symlink_to("nothing")
    with pytest.raises(
        CorpusError, match=r"train-easy/numbers__gcd.txt.*: cannot be read: .*No su"
    ):
        prepared(tmp_path, source)


def test_faults_of_parquet(tmp_path):
    good = parquet_of(pairs("x", 5))
    table, not_text = {"question": [b"1", b"\xff", b"4"], "answer": ["1"] * 3}, io.BytesIO()
    parquet.write_table(pa.table(table), not_text)
    files = {
        "numbers__gcd/train.parquet": good,
        "numbers__lcm/train.parquet": good[:-20],
        "polynomials__add/train.parquet": parquet_of([], other=[]).replace(b"answer", b"ANSWER"),
        "numbers__gcd/test.parquet": parquet_of([("1", "2"), ("B", "2")]),
        "numbers__lcm/test.parquet": not_text.getvalue(),
    }
    source = write_folder(tmp_path / "hub", files)
    with pytest.raises(CorpusError, match=r"numbers__gcd/test.parquet, line 2: .* the 69: 'B'"):
        prepared(tmp_path, source)
    store = prepared(tmp_path, source, skip_errors=True)
    assert {entry["file"] for entry in store.skipped} == set(files) - {"numbers__gcd/train.parquet"}
    assert all("cannot be read" in e["reason"] for e in store.skipped if "test" not in e["file"])
    assert rows_of(store)["interpolate", "numbers__lcm", None] == [("1", "1"), ("4", "1")]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x1f\x8b" + bytes(30), bytes(2000)])
def test_what_is_no_archive_is_an_error(tmp_path, content):
    (tmp_path / "file.tar.gz").write_bytes(content)
    with pytest.raises(CorpusError, match=r"file.tar.gz"):
        prepared(tmp_path, tmp_path / "file.tar.gz")
    with pytest.raises(CorpusError, match=r"holds no questions|is damaged|neither a .tar.gz"):
        prepared(tmp_path, tmp_path / "file.tar.gz", skip_errors=True)


def test_what_is_no_corpus_is_an_error(tmp_path):
    with pytest.raises(CorpusError, match="there is no archive or folder"):
        prepared(tmp_path, tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=r"neither .txt files of v1.0 nor .parquet or .jsonl"):
        prepared(tmp_path, tmp_path)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.tex").touch()
    with pytest.raises(StoreError, match="not a store"):
        prepared(tmp_path, write_archive(tmp_path / "v1.tar.gz", texts()))


def test_a_cut_archive_is_never_taken_for_a_whole_one(tmp_path):
    whole = write_archive(tmp_path / "v1.tar.gz", texts()).read_bytes()
    cut = tmp_path / "cut.tar.gz"
    for length in (*range(3, len(whole) - 10, 7), *(len(whole) - n for n in (10, 8, 4, 1))):
        cut.write_bytes(whole[:length])
        with pytest.raises(CorpusError, match=r"(damaged|cut off) (here|after)"):
            prepared(tmp_path, cut)
    plain = write_archive(tmp_path / "v1.tar", texts(), compress=False).read_bytes()
    end = len(plain.rstrip(b"\0"))
    for length in range(512, end, 501):
        cut.write_bytes(plain[:length])
        with pytest.raises(CorpusError, match=r"(damaged|cut off) (here|after)"):
            prepared(tmp_path, cut)


def test_the_whole_rows_of_a_cut_archive_can_be_kept(tmp_path):
    files = {"train-easy/arithmetic__mixed": 5, "train-hard/arithmetic__mixed": 3000}
    whole = write_archive(tmp_path / "v1.tar.gz", texts(files)).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusError, match=r"train-hard/arithmetic__mixed.txt, line [0-9,]+: the a"):
        prepared(tmp_path, tmp_path / "cut.tar.gz")
    store = prepared(tmp_path, tmp_path / "cut.tar.gz", skip_errors=True)
    rows, expected = rows_of(store), segments_of(files)
    hard = rows.pop(("train", "arithmetic__mixed", "hard"))
    assert 100 < len(hard) < 3000
    assert hard == expected.pop(("train", "arithmetic__mixed", "hard"))[: len(hard)]
    assert rows == expected
    assert store.skipped[0]["first_line"] == 2 * len(hard) + 1


def test_a_damaged_archive_is_noticed(tmp_path):
    whole = bytearray(write_archive(tmp_path / "v1.tar.gz", texts()).read_bytes())
    (tmp_path / "bad.tar.gz").write_bytes(whole)
    n_refused = 0
    for position in range(10, len(whole), 11):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        (tmp_path / "bad.tar.gz").write_bytes(damaged)
        with pytest.raises(CorpusError):
            prepared(tmp_path, tmp_path / "bad.tar.gz")
        # What came before the damage was noticed may be wrong too, so it cannot be skipped; unless
        # it made the archive look cut off, and then it is reported as that.
        try:
            store = prepared(tmp_path, tmp_path / "bad.tar.gz", skip_errors=True)
        except CorpusError as error:
            n_refused += "is damaged" in str(error)
        else:
            assert any("is cut off" in entry["reason"] for entry in store.skipped)
    assert n_refused > 5
    plain = bytearray(write_archive(tmp_path / "v1.tar", texts(), compress=False).read_bytes())
    plain[1024 + 20] ^= 1  # in the name of the second member
    (tmp_path / "bad.tar").write_bytes(plain)
    first = r"mathematics_dataset-v1.0/train-easy/arithmetic__mixed.txt \(bad checksum"
    with pytest.raises(CorpusError, match=f"^bad.tar: the archive is damaged after {first}"):
        prepared(tmp_path, tmp_path / "bad.tar")


@pytest.mark.parametrize("format_", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_further_headers(tmp_path, format_):
    root = "long/" * 25 + "é/" * (format_ == tarfile.PAX_FORMAT) + "mathematics_dataset-v1.0/"
    headers = {"pax_headers": {"comment": "none"}} if format_ == tarfile.PAX_FORMAT else {}
    source = write_archive(tmp_path / "v1.tar.gz", texts(), root, format=format_, **headers)
    with tarfile.open(source) as archive_:
        assert all(name.startswith("long/long/") for name in archive_.getnames())
    assert rows_of(prepared(tmp_path, source)) == segments_of()


def test_several_gzip_files_end_to_end_are_one(tmp_path):
    plain = write_archive(tmp_path / "v1.tar", texts(), compress=False).read_bytes()
    parts = gzip.compress(plain[:700]) + gzip.compress(plain[700:]) + bytes(100)
    (tmp_path / "v1.tar.gz").write_bytes(parts)
    assert rows_of(prepared(tmp_path, tmp_path / "v1.tar.gz")) == segments_of()


@pytest.mark.parametrize("kind", ["one header", "two archives", "text"])
@pytest.mark.parametrize("compress", [True, False])
def test_what_follows_an_end_mark_is_named(tmp_path, kind, compress):
    whole = write_archive(tmp_path / "v1.tar", texts(), compress=False).read_bytes()
    names = [f"mathematics_dataset-v1.0/{name}" for name in texts()]
    if kind == "one header":
        start = whole.index(names[1].encode())
        data = whole[:start] + bytes(512) + whole[start + 512 :]
        found, last = f"{', '.join(names[2:5])} and 1 more", names[0]
    elif kind == "two archives":
        more = {"train-hard/numbers__gcd.txt": text_of(pairs("x", 3))}
        data = whole + write_archive(tmp_path / "b.tar", more, compress=False).read_bytes()
        found, last = "mathematics_dataset-v1.0/train-hard/numbers__gcd.txt", names[-1]
    else:
        data = whole + b"What is 1 + 1?"
        found, last = "14 bytes without a file's name", names[-1]
    source = tmp_path / "bad.tar.gz"
    source.write_bytes(gzip.compress(data) if compress else data)
    reason = f"the archive is damaged after {last} (an end marker, followed by {found})"
    with pytest.raises(CorpusError, match=f"^bad.tar.gz: {re.escape(reason)}$"):
        prepared(tmp_path, source)
    assert not (tmp_path / "store").exists()
    store = prepared(tmp_path, source, skip_errors=True)
    assert [entry["reason"] for entry in store.skipped] == [reason]
    expected = segments_of()
    if kind == "one header":
        expected = dict(list(expected.items())[:1])
    assert rows_of(store) == expected


def header(kind, size, name="x"):
    """The header of a member of an archive, which may be a header itself."""
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def padded(content):
    return content + bytes(-len(content) % 512)


def pax(content, kind=tarfile.XHDTYPE):
    return header(kind, len(content)) + padded(content)


def long_name(length):
    name = b"x" * length + b".txt\0"
    return header(tarfile.GNUTYPE_LONGNAME, len(name)) + padded(name)


MEMBER = header(tarfile.REGTYPE, len(ROW), "train-easy/numbers__gcd.txt") + padded(ROW)
# Headers before a member, and what is said about them.
EXCESSIVE = {
    "one header": (pax(b"".join(b"13 k%06d=x\n" % i for i in range(20_000))), "headers of more"),
    "many records": (pax(b"5 a=\n" * 200_000), "headers of more than 8,192 bytes for one file"),
    "many headers": (pax(b"13 k00000=xy\n" * 1000) * 200, "headers of more"),
    "global headers": (pax(b"5 a=\n", tarfile.XGLTYPE) * 1000, "headers of more"),
    "many members": (header(tarfile.DIRTYPE, 0) * 10_001, "more than 10,000 files"),
    "a long name": (long_name(5000), "an impossible size or name"),
    "a negative size": (header(tarfile.REGTYPE, -5), "an impossible size or name"),
    "a negative pax size": (pax(b"11 size=-5\n"), "an impossible size or name"),
}
# Versions of Python ignore these headers, or refuse the archive.
BROKEN = {
    "a negative header": header(tarfile.XHDTYPE, -5),
    "a short record": pax(b"3 path=x\n"),
    "a long record": pax(b"99 path=x\n"),
    "no record": pax(b"nonsense"),
    "overlapping records": pax(b"2 " * 4000 + b"="),
}


@pytest.mark.parametrize("kind", EXCESSIVE)
def test_headers_are_bounded(tmp_path, kind):
    headers, message = EXCESSIVE[kind]
    (tmp_path / "v1.tar.gz").write_bytes(gzip.compress(headers + MEMBER + bytes(1024)))
    for skip in (False, True):
        tracemalloc.start()
        with pytest.raises(CorpusError, match=f"the archive is damaged .*{message}"):
            prepared(tmp_path, tmp_path / "v1.tar.gz", skip_errors=skip)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # The blocks that are unzipped ahead have up to 4 MB each.
        assert most < 30 * 2**20


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_header_is_bounded_and_never_loses_a_file_silently(tmp_path, kind):
    other = header(tarfile.REGTYPE, len(ROW), "train-easy/numbers__lcm.txt") + padded(ROW)
    (tmp_path / "v1.tar").write_bytes(BROKEN[kind] + MEMBER + other + bytes(1024))
    tracemalloc.start()
    with suppress(CorpusError):
        store = prepared(tmp_path, tmp_path / "v1.tar", skip_errors=True)
        assert len(store["train"]) + len(store.skipped) == 2
    assert tracemalloc.get_traced_memory()[1] < 30 * 2**20
    tracemalloc.stop()


def test_what_unzips_to_much_more_comes_in_blocks(tmp_path, monkeypatch):
    rows = [("What is 1 + 1?", "2")] * 50_000
    source = write_archive(tmp_path / "v1.tar.gz", {MIXED: text_of(rows)})
    assert source.stat().st_size < 5_000
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1000)
    with source.open("rb") as raw:
        assert max(map(len, readers.unzip(raw))) == 1000
    assert len(prepare(source, tmp_path / "store")["train"]) == 50_000


def test_folders_and_other_files_of_an_archive(tmp_path):
    folder = tarfile.TarInfo("mathematics_dataset-v1.0/train-easy")
    folder.type = tarfile.DIRTYPE
    members = [(folder, b""), *texts().items(), ("README.md", b"#"), ("train-easy/._x.txt", b"?")]
    store = prepared(tmp_path, write_archive(tmp_path / "v1.tar.gz", members))
    assert rows_of(store) == segments_of()
    assert [entry["file"].split("/")[-1] for entry in store.skipped] == ["._x.txt"]


def test_progress_ends_at_the_whole(tmp_path):
    source = write_archive(tmp_path / "v1.tar.gz", texts())
    seen = []
    prepared(tmp_path, source, progress=lambda done, total: seen.append((done, total)))
    size = source.stat().st_size
    assert seen[-1] == (size, size)
    assert len(seen) == len(FILES)


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample of the published data is not here")
def test_every_question_of_the_sample_is_in_the_store(tmp_path):
    store = prepare(SAMPLE, tmp_path / "store")
    found = rows_of(store)
    n_rows = 0
    with tarfile.open(SAMPLE) as archive_:
        for member in archive_:
            if not member.isfile():
                continue
            folder, name = member.name.split("/")[-2:]
            split, _, difficulty = folder.partition("-")
            lines = archive_.extractfile(member).read().decode().splitlines()
            rows = found.pop((split, name.removesuffix(".txt"), difficulty or None))
            assert rows == list(zip(lines[0::2], lines[1::2], strict=True))
            n_rows += len(rows)
    assert found == {}
    assert n_rows == 909_000
    assert store.skipped == []


def test_a_json_line_of_many_blocks_is_one_fault(tmp_path):
    row = b'{"question": "1", "answer": "2"}\n'
    long = b'{"question": "' + b"1" * (9 * 2**20) + b'", "answer": "2"}\n'
    source = write_folder(tmp_path / "hub", {"numbers__gcd/train.jsonl": row + long + row})
    with pytest.raises(CorpusError, match=r"train.jsonl, line 2: a line of more than"):
        prepared(tmp_path, source)
    store = prepared(tmp_path, source, skip_errors=True)
    assert len(store["train"]) == 2
    assert [(e["rows"], e["first_line"]) for e in store.skipped] == [(1, 2)]


def test_links_in_a_folder_are_followed_and_hidden_folders_noted(tmp_path):
    files = {
        f"train-easy/{MIXED_NAME}.txt": b"1\n2\n",
        f".old/train-hard/{MIXED_NAME}.txt": b"3\n4\n",
    }
    real = write_folder(tmp_path / "real", files)
    (tmp_path / "v1" / "train-medium").parent.mkdir()
    (tmp_path / "v1" / "train-medium").symlink_to(real / "train-easy")
    (tmp_path / "v1" / ".old").symlink_to(real / ".old")
    (tmp_path / "v1" / "back").symlink_to(tmp_path / "v1")
    store = prepared(tmp_path, tmp_path / "v1")
    assert [(s.difficulty, s.count) for s in store["train"].segments] == [("medium", 1)]
    assert [e["file"] for e in store.skipped] == [f".old/train-hard/{MIXED_NAME}.txt"]


@pytest.mark.parametrize("format_", ["v1.0", "parquet", "jsonl"])
def test_questions_that_look_wrapped_survive_an_export(tmp_path, format_):
    from tp_transformer.data.export import export

    source = write_folder(
        tmp_path / "v1", {f"train-easy/{MIXED_NAME}.txt": b"b''\n1\nb'x'\n2\nb'x\n3\n"}
    )
    store = prepared(tmp_path, source)
    export(store, tmp_path / "out", format=format_)
    again = prepared(tmp_path / "out.again", tmp_path / "out")
    assert [e.question for e in again["train"]] == ["b''", "b'x'", "b'x"]
    assert again["train"].digest == store["train"].digest


MIXED_NAME = "arithmetic__mixed"
