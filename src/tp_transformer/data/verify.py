"""Verification of a store: all bytes, compared with the hashes recorded when it was written."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from tp_transformer.data.manifest import MANIFEST, matches_hash
from tp_transformer.data.store import Split, open_store
from tp_transformer.foundation.errors import StoreError
from tp_transformer.foundation.progress import Counted, Update

_READ_BYTES = 2**22


def verify(folder: str | Path, progress: Update | None = None) -> list[str]:
    """Compare a store with its hashes and checksums; return a line for each file.

    All damage is reported in one StoreError. If an older store lacks hashes, its lines say what
    cannot be checked.
    """
    store = open_store(folder)  # raises if it is malformed
    faults = []
    lines = [f"{MANIFEST}: matches its hash"]
    is_unchanged = matches_hash(store.path)
    if is_unchanged is None:
        lines = [f"{MANIFEST}: is well-formed; has no hash, so its source is not checked"]
    elif not is_unchanged:
        faults.append(f"{MANIFEST} was changed after it was written")
    # A file is read once for its hash, if it has one, and once for its texts.
    n_bytes = sum(split.n_bytes * (1 + (split.sha256 is not None)) for split in store.values())
    counted = Counted(n_bytes, progress)
    for split in store.values():
        faults += [*_wrong_bytes(split, counted), *_wrong_texts(split, counted)]
        if split.sha256 is None:
            checked = "rows match their checksums; has no hash, so other bytes are not checked"
        else:
            checked = "rows match their checksums, the file its hash"
        lines.append(f"{split.path.name}: {len(split):,} {checked}")
    if faults:
        # The same error occurs for each segment of a file that cannot be read.
        raise StoreError(f"{store.path} is damaged: {'; '.join(dict.fromkeys(faults))}")
    return lines


def _wrong_bytes(split: Split, counted: Counted) -> Iterator[str]:
    """Yield what is wrong with the file of a split as a whole, if its hash was recorded."""
    found = hashlib.sha256()
    with split.path.open("rb") as file:
        while split.sha256 is not None and (data := file.read(_READ_BYTES)):
            found.update(data)
            counted.add(len(data))
    if split.sha256 is not None and found.hexdigest() != split.sha256:
        yield f"{split.path.name} does not match its hash"


def _wrong_texts(split: Split, counted: Counted) -> Iterator[str]:
    """Yield the segments whose rows have changed."""
    n_rows = 0
    for segment in split.segments:
        try:
            for batch in split.batches(segment):
                before, n_rows = n_rows, n_rows + batch.num_rows
                done_before, done = (split.n_bytes * n // len(split) for n in (before, n_rows))
                counted.add(done - done_before)
        except StoreError as error:
            yield str(error).removeprefix(f"{split.path.parent}/")
