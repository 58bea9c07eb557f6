"""`tpt data verify`: intact stores pass, any changed byte is named, old stores say what is left."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

import tp_transformer as tpt
from corpora import make_store, segments_of
from tp_transformer.cli import main
from tp_transformer.data.verify import verify
from tp_transformer.foundation.errors import StoreError


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "store", segments_of())


@pytest.fixture
def old_store(tmp_path):
    """A store as they were made before hashes were kept."""
    store = shutil.copytree(Path(__file__).with_name("store-version-1"), tmp_path / "old")
    file = store / "store.json"
    described = json.loads(file.read_text())
    del described["sha256"]
    for split in described["splits"].values():
        del split["sha256"]
    file.write_text(json.dumps(described))
    return store


def flip(file, position):
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def test_an_intact_store_passes(store, capsys):
    main(["data", "verify", str(store)])
    assert capsys.readouterr().out.splitlines() == [
        "store.json: matches its hash",
        "train.arrow: 15 rows match their checksums, the file its hash",
        "interpolate.arrow: 4 rows match their checksums, the file its hash",
        "extrapolate.arrow: 3 rows match their checksums, the file its hash",
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


def test_an_old_store_opens_and_says_what_is_not_checked(old_store):
    assert len(tpt.data.open(old_store)["train"].rows(range(15))[0]) == 15
    assert verify(old_store) == [
        "store.json: is well-formed; has no hash, so its source is not checked",
        *(
            f"{name}.arrow: {count} rows match their checksums; has no hash, so other bytes are "
            f"not checked"
            for name, count in (("train", 15), ("interpolate", 4), ("extrapolate", 3))
        ),
    ]
    file = old_store / "train.arrow"
    flip(file, file.read_bytes().index(b"What is 1 + ") + 8)
    with pytest.raises(StoreError, match=r"damaged in .*: its texts are not those that store.json"):
        verify(old_store)


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
