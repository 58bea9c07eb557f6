"""The training questions that a model was validated with, and so never trained on.

A run's settings tell which rows of its data were held out. A model folder without a run does not
say what the model was trained on; then, as for other data than the run's, nothing is known.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tp_transformer import settings
from tp_transformer.data.feed import Feed, FeedConfig
from tp_transformer.data.store import MANIFEST, TRAIN, Store
from tp_transformer.data.vocabulary import Ids
from tp_transformer.errors import SettingsError

RUN, RUN_CONFIG = "run.json", "config.yaml"  # as `training/run.py` writes them


def held_out_rows(folder: str | Path | None, store: Store) -> Ids | None:
    """The rows of the training split that the model's run held out; None if that is not known."""
    run = _run_of(folder)
    if run is None or TRAIN not in store:
        return None
    origin = _read_origin(run)
    if origin.get("data_sha256") != _sha256(store.path / MANIFEST):  # wherever the store is now
        return None
    file = run / RUN_CONFIG
    untold = f"{file} does not tell which questions were held out"
    recorded = origin.get("config_sha256")  # absent in runs of earlier versions
    if recorded is not None and file.is_file() and recorded != _sha256(file):
        raise SettingsError(f"{untold}: it is not as it was when the run was begun; put it back")
    values = settings.read(file)
    fields, validation = values.get("data"), values.get("validation")
    count = validation.get("count") if isinstance(validation, dict) else None
    if not isinstance(fields, dict) or type(count) is not int or count < 0:
        raise SettingsError(untold)
    data = settings.to_dataclass(FeedConfig, fields, "data")
    feed = Feed(
        store[TRAIN], batch_size=1, modules=data.modules, weights=data.weights, held_out=count
    )
    return feed.held_out_rows


def _run_of(folder: str | Path | None) -> Path | None:
    """The run that a folder is, or that its model belongs to."""
    if folder is None:
        return None
    path = Path(folder).resolve()  # `last` is a link to a checkpoint
    # A checkpoint and a best model lie two levels below their run.
    return next((one for one in (path, *path.parents[:2]) if (one / RUN).is_file()), None)


def _read_origin(run: Path) -> Mapping[str, Any]:
    """What a run was begun with, as `run.json` says."""
    try:
        origin = json.loads((run / RUN).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{run / RUN} is damaged: {error}") from error
    return origin if isinstance(origin, dict) else {}


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
