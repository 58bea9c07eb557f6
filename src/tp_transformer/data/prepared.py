"""Questions and answers from files into a store: pairs of one's own, or the Mathematics Dataset."""

from collections.abc import Mapping
from pathlib import Path

from tp_transformer.data.mathematics import corpus
from tp_transformer.data.pair_files import Columns, looks_like_pairs
from tp_transformer.data.pairs import Tokenisation, prepare_pairs
from tp_transformer.data.store import Store
from tp_transformer.data.writer import refuse_other_store
from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.progress import Update


def prepare(  # noqa: PLR0913, the options of the command
    source: str | Path,
    out: str | Path,
    *,
    task: str | None = None,
    columns: Columns | None = None,
    tokenisation: Tokenisation = "characters",
    shares: Mapping[str, float] | None = None,
    seed: int = 0,
    skip_errors: bool = False,
    overwrite: bool = False,
    progress: Update | None = None,
) -> Store:
    """Read questions and answers into the store `out`.

    With `task`, which names them, they are pairs of your own, and `columns`, `tokenisation`,
    `shares` and `seed` are those of `prepare_pairs`. Without it, `source` is the Mathematics
    Dataset: the v1.0 archive, its folder, or the Hugging Face copy. Invalid rows are an error, or
    with `skip_errors` left out and listed in the store. An earlier store of a source of the same
    name, made with the same options, is replaced; another store only if `overwrite` is true.
    """
    if task is not None:
        return prepare_pairs(
            source,
            out,
            task=task,
            columns=columns,
            tokenisation=tokenisation,
            shares=shares,
            seed=seed,
            skip_errors=skip_errors,
            overwrite=overwrite,
            progress=progress,
        )
    if looks_like_pairs(source):
        raise SettingsError(
            f"{source} is not a copy of the Mathematics Dataset; to read questions and "
            "answers of your own, name their task, as in --task NAME"
        )
    if (columns, tokenisation, shares, seed) != (None, "characters", None, 0):
        raise SettingsError(
            "columns, tokenisation, shares and seed are for pairs of your own; name their task"
        )
    if not overwrite:
        refuse_other_store(Path(out), {"name": Path(source).resolve().name})
    return corpus.prepare(source, out, skip_errors=skip_errors, progress=progress)
