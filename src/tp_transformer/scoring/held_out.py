"""The training questions that a model was validated with, and so never trained on.

A run's settings tell which rows of its data were held out. A model folder without a run does not
say what the model was trained on; then, as for other data than the run's, nothing is known.
"""

from pathlib import Path

from tp_transformer.data.feed import Feed, FeedConfig
from tp_transformer.data.store import MANIFEST, TRAIN, Store
from tp_transformer.data.vocabulary import Ids
from tp_transformer.foundation import settings
from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.run_folder import CONFIG, read_origin, run_of, sha256


def held_out_rows(folder: str | Path | None, store: Store) -> Ids | None:
    """The rows of the training split that the model's run held out; None if that is not known."""
    run = None if folder is None else run_of(folder)
    if run is None or TRAIN not in store:
        return None
    origin = read_origin(run)
    if origin.get("data_sha256") != sha256(store.path / MANIFEST):  # wherever the store is now
        return None
    file = run / CONFIG
    untold = f"{file} does not tell which questions were held out"
    recorded = origin.get("config_sha256")  # absent in runs of earlier versions
    if recorded is not None and sha256(file) not in (None, recorded):
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
