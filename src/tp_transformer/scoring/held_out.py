"""The training questions that were held out for validation when a model was trained.

They follow from the settings of the run. They are unknown for a model folder without a run, and on
other data than that of the run.
"""

from pathlib import Path

from tp_transformer.data.sampling import Feed, FeedConfig
from tp_transformer.data.store import MANIFEST, TRAIN, Store
from tp_transformer.data.vocabulary import Ids
from tp_transformer.foundation import settings
from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.run_folder import CONFIG, read_origin, run_of, sha256


def held_out_rows(folder: str | Path | None, store: Store) -> Ids | None:
    """Return the rows of the training split that the run held out, or None if unknown."""
    run = None if folder is None else run_of(folder)
    if run is None or TRAIN not in store:
        return None
    origin = read_origin(run)
    if origin.get("data_sha256") != sha256(store.path / MANIFEST):  # the store may have moved
        return None
    file = run / CONFIG
    message = f"cannot read from {file} which questions were held out"
    recorded = origin.get("config_sha256")  # absent in runs of earlier versions
    if recorded is not None and sha256(file) not in (None, recorded):
        raise SettingsError(f"{message}: it was changed after the run was started; restore it")
    values = settings.read(file)
    fields, validation = values.get("data"), values.get("validation")
    count = validation.get("count") if isinstance(validation, dict) else None
    if not isinstance(fields, dict) or type(count) is not int or count < 0:
        raise SettingsError(message)
    data = settings.to_dataclass(FeedConfig, fields, "data")
    feed = Feed(
        store[TRAIN], batch_size=1, modules=data.modules, weights=data.weights, held_out=count
    )
    return feed.held_out_rows
