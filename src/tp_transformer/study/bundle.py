"""`tpt bundle`: makes the model of a run one that the package contains.

The folder of bundled models (model/bundled.py) is written atomically: weights, card, scores and
training of one model, or of two. They replace models of the same names and come before the others.
Weights are rounded to bfloat16 and stored in float32, which halves their size in compressed files.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pyarrow as pa
import torch
from pyarrow import compute

from tp_transformer import settings
from tp_transformer.data.store import Store, open_store
from tp_transformer.data.task import TRAIN
from tp_transformer.errors import FolderError, SettingsError, StoreError, UserError
from tp_transformer.interpret.core.result import plain
from tp_transformer.interpret.core.sample import draw
from tp_transformer.interpret.options import RolesOptions
from tp_transformer.interpret.roles.analysis import layer_clusters
from tp_transformer.model import bundled, checkpoint
from tp_transformer.model.checkpoint import AnyModel, load, model_path
from tp_transformer.model.folder import WEIGHTS
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.files import atomic_write
from tp_transformer.runtime.progress import Show
from tp_transformer.runtime.provenance import Values
from tp_transformer.runtime.run_folder import read_origin, run_of
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import Choice, Work
from tp_transformer.show.model_card import CardFacts, model_card, settings_file
from tp_transformer.training.history import HISTORY, History, history_of

MODEL_BYTES = 12_000_000  # the largest weights of a bundled model
TOTAL_BYTES = 30_000_000  # the largest size of all files


def bundle(
    run: str | Path,
    *,
    twin: str | Path | None = None,
    data: str | Path | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    show: Show | None = None,
) -> Path:
    """Score the model of a run, and write it as the first bundled model; return the folder.

    It has the name of the run, and its weights are rounded to bfloat16. A bundled model of that
    name is replaced, and others stay. If anything fails, nothing changes.

    Args:
        run: a run, whose best model is taken, or one of its checkpoints
        twin: the run of a second model, to bundle for comparison
        data: the store with the test questions; by default that of the run
        out: the folder to write; by default that inside the package
        device: auto, cpu, cuda or mps
        show: makes a progress bar from a title
    """
    folder = bundled.FOLDER if out is None else Path(out)
    _refuse_folder(folder, is_package=out is None)
    store = open_store(read_origin(_run_of(run))["data"] if data is None else data)
    if not _test_splits(store):
        raise StoreError(f"{store.path} has no test questions to score; name another with --data")
    chosen = [run] if twin is None else [run, twin]
    found = [_trained(one) for one in chosen]
    if len({one.name for one in found}) < len(found):
        raise SettingsError(f"{run} and {twin} would both be bundled as {found[0].name}")
    _refuse_stale_cards(folder, [one.name for one in found])
    facts = [_scored(one, store, device, show) for one in found]
    _write(folder, facts, {one.name: _roles(one.model, store) for one in found})
    return folder


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """A model of a run; its weights stay the same, even if the run goes on."""

    name: str
    run: Path
    path: Path
    model: AnyModel
    history: History


def _refuse_folder(folder: Path, is_package: bool) -> None:
    """Raise before hours of scoring if the folder cannot be written or is something else."""
    if is_package and not (folder.parents[2] / "pyproject.toml").is_file():
        raise FolderError(
            f"the package in {folder.parent} is not a source checkout; name another folder to "
            "write with --out"
        )
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file; name a folder")
    if folder.is_dir() and not _holds_only_models(folder):
        raise FolderError(f"{folder} holds something else than bundled models; name a new folder")
    existing = next(path for path in folder.absolute().parents if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise FolderError(f"{existing} is not a writable folder; name another one with --out")


def _refuse_stale_cards(folder: Path, names: Sequence[str]) -> None:
    """Raise if the card of a model that stays compares it with a model that is replaced."""
    for other in set(bundled.names(folder)) - set(names):
        card = (folder / other / bundled.CARD).read_text("utf-8")
        for name in names:
            if f"## Compared with {name}\n" in card:
                raise SettingsError(
                    f"{other} is compared with {name} in its card: bundle the two together, one of "
                    "them as --twin"
                )


def _holds_only_models(folder: Path) -> bool:
    """Whether a folder is empty or has what `tpt bundle` writes."""
    found = {entry.name for entry in folder.iterdir()}
    try:
        names = bundled.names(folder)
    except (OSError, ValueError, TypeError):
        return False
    models = [folder / name for name in names]
    return found <= {bundled.INDEX, *names} and all((one / WEIGHTS).is_file() for one in models)


def _run_of(folder: str | Path) -> Path:
    path = Path(folder)
    run = run_of(path) if path.exists() else None
    if run is None:
        raise FolderError(f"{path} is not a run of `tpt train`, nor a checkpoint of one")
    return run


def _test_splits(store: Store) -> tuple[str, ...]:
    return tuple(name for name in store if name != TRAIN)


def _seen_in_training(run: Path, store: Store) -> int | None:
    """Count the test questions that also occur in the training split of a run's store.

    None if that store is no longer there.
    """
    try:
        trained = open_store(read_origin(run)["data"])[TRAIN]
    except (OSError, UserError):
        return None
    asked = [one.question for name in _test_splits(store) for one in store[name]]
    value_set = pa.array(dict.fromkeys(asked), pa.string())
    found: set[str] = set()
    for segment in trained.segments:
        for batch in trained.batches(segment):
            questions = batch["question"]
            hits = compute.is_in(questions, value_set=value_set)
            found.update(questions.filter(hits).to_pylist())
    return sum(question in found for question in asked)


def _trained(folder: str | Path) -> _Trained:
    run = _run_of(folder)
    path = model_path(Path(folder)).resolve()
    model, history = rounded(load(path)), history_of(path)
    if history is None:
        raise FolderError(f"{path} has no record of its training")
    return _Trained(name=run.name, run=run, path=path, model=model, history=history)


def rounded(model: AnyModel) -> AnyModel:
    """Round the weights of a model to bfloat16, in place; their type stays the same."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(tensor.bfloat16())
    return model


def _scored(one: _Trained, store: Store, device: str, show: Show | None) -> CardFacts:
    choice, work = Choice(splits=_test_splits(store)), Work(diagnose=0)
    results = evaluate(one.model, store, choice=choice, work=work, device=device, show=show)
    described = checkpoint.describe(one.model, one.path, results.model["sha256"])
    results = replace(
        results,
        model={**described, "name": one.name},
        data={**results.data, "seen_in_training": _seen_in_training(one.run, store)},
    )
    return CardFacts(name=one.name, model=one.model, results=results, history=one.history)


def _roles(model: AnyModel, store: Store) -> Values | None:
    """Return named clusters of the last encoder layer, in the format of `tpt interpret roles`.

    None if the model has no such layer, or answers none of the questions that they need.
    """
    if not isinstance(model, Transformer):
        return None
    try:
        sample = draw(model, store)
    except UserError:
        return None
    heads = layer_clusters(model, sample, n_clusters=RolesOptions().clusters, seed=0)
    values: Values = plain(
        {
            "analysis": "roles",
            "model": {"sha256": checkpoint.model_hash(model)},
            "origin": sample.origin,
            "vectors": "role" if model.config.d_role else "value",
            "layer": model.config.n_layers - 1,
            "heads": [
                {
                    "head": head.head,
                    "centroids": head.centroids.round(5),
                    "names": head.names,
                }
                for head in heads
            ],
        }
    )
    return values


def _write(folder: Path, facts: Sequence[CardFacts], roles: Mapping[str, Values | None]) -> None:
    try:
        with atomic_write(folder) as unfinished:
            unfinished.mkdir()
            for one in facts:
                other = next((found for found in facts if found is not one), None)
                _write_model(unfinished / one.name, one, other)
                if (clusters := roles[one.name]) is not None:
                    (unfinished / one.name / bundled.ROLES).write_text(
                        json.dumps(clusters), "utf-8"
                    )
            names = [one.name for one in facts]
            for name in set(bundled.names(folder)) - set(names):
                shutil.copytree(folder / name, unfinished / name)
            order = dict.fromkeys([*names, *bundled.names(folder)])
            index = json.dumps(list(order), indent=1) + "\n"
            (unfinished / bundled.INDEX).write_text(index, "utf-8")
            _refuse_size(unfinished)
    except OSError as error:
        raise FolderError(f"cannot write {folder}: {error}") from error


def _write_model(folder: Path, facts: CardFacts, twin: CardFacts | None) -> None:
    facts.model.save(folder)
    facts.results.save(folder / bundled.RESULTS)
    history = json.dumps(msgspec.to_builtins(facts.history), indent=1, ensure_ascii=False) + "\n"
    (folder / HISTORY).write_text(history, "utf-8")
    for number, stage in enumerate(facts.history.stages, 1):
        text = settings.dump(stage.settings)
        (folder / settings_file(number)).write_text(text, "utf-8", newline="\n")
    (folder / bundled.CARD).write_text(model_card(facts, twin), "utf-8", newline="\n")


def _refuse_size(folder: Path) -> None:
    """Raise if a model or all files together are too large for the package."""
    total = 0
    for file in (path for path in folder.rglob("*") if path.is_file()):
        size = file.stat().st_size
        total += size
        if file.suffix == ".safetensors" and size > MODEL_BYTES:
            raise UserError(
                f"the weights of {file.parent.name} have {size / 1e6:.1f} MB; a bundled model has "
                f"at most {MODEL_BYTES / 1e6:.0f}"
            )
    if total > TOTAL_BYTES:
        raise UserError(
            f"the bundled models have {total / 1e6:.1f} MB; at most {TOTAL_BYTES / 1e6:.0f} fit "
            "into the package"
        )
