"""`tpt data verify`: intact stores pass, and any changed byte is named."""

import hashlib
import json

import pytest

import tp_transformer as tpt
from corpora import make_store, segments_of
from tp_transformer.cli import main
from tp_transformer.data.store import verify
from tp_transformer.errors import StoreError


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "store", segments_of())


def flip(file, position):
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def test_an_intact_store_passes(store, capsys):
    main(["data", "verify", str(store)])
    assert capsys.readouterr().out.splitlines() == [
        "store.json: matches its hash",
        "train.arrow: 15 rows, matches its hash",
        "interpolate.arrow: 4 rows, matches its hash",
        "extrapolate.arrow: 3 rows, matches its hash",
    ]


def test_the_hashes_are_those_of_the_files(store):
    for split in tpt.data.open(store).values():
        assert split.sha256 == hashlib.sha256(split.path.read_bytes()).hexdigest()


def test_any_changed_byte_is_found(store, capsys):
    file = store / "train.arrow"
    intact = file.read_bytes()
    for position in range(0, len(intact), 13):
        flip(file, position)
        with pytest.raises(StoreError, match=r"train\.arrow") as refusal:
            verify(store)
        assert "\n" not in str(refusal.value)
        file.write_bytes(intact)
    described = json.loads((store / "store.json").read_text())
    described["source"]["kind"] = "another"
    (store / "store.json").write_text(json.dumps(described))
    with pytest.raises(SystemExit) as stop:
        main(["data", "verify", str(store)])
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        f"tpt: {store} is damaged: store.json was changed after it was written\n"
    )


def test_all_that_is_damaged_is_named(store):
    split = tpt.data.open(store)["train"]
    data = split.path.read_bytes()
    for row in (2, 7):
        question = split[row].question.encode()
        assert data.count(question) == 1
        data = data.replace(question, question.replace(b"What", b"that"))
    split.path.write_bytes(data)
    with pytest.raises(StoreError) as refusal:
        verify(store)
    reason = "its texts are not those that store.json describes"
    assert str(refusal.value) == (
        f"{store} is damaged: train.arrow does not match its hash; "
        f"train.arrow is damaged in algebra__linear_1d easy: {reason}; "
        f"train.arrow is damaged in arithmetic__mixed easy: {reason}"
    )


def test_progress_ends_at_the_whole(store):
    seen = []
    verify(store, progress=lambda done, total: seen.append((done, total)))
    assert seen
    assert seen[-1][0] == seen[-1][1]
    assert all(done <= total for done, total in seen)


def test_a_file_that_cannot_be_read_is_named_once(store):
    file = store / "train.arrow"
    data = bytearray(file.read_bytes())
    data[-200:-20] = bytes(180)  # the footer
    file.write_bytes(data)
    with pytest.raises(StoreError) as refusal:
        verify(store)
    assert str(refusal.value).count("train.arrow is damaged or not an Arrow file") == 1
