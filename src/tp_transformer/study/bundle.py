"""`tpt bundle`: makes the model of a run one that the package contains.

The folder of bundled models (model/bundled.py) is written atomically: weights, card, scores and
training of one model, or of two. They replace models of the same names and come before the others.
Weights are rounded to bfloat16 and stored in float32, which halves their size in compressed files.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import torch
from pyarrow import compute

from tp_transformer import settings
from tp_transformer.data.store import Store, open_store
from tp_transformer.data.task import TRAIN
from tp_transformer.errors import FolderError, SettingsError, StoreError, UserError
from tp_transformer.interpret.analyses import RolesOptions
from tp_transformer.interpret.core.result import plain
from tp_transformer.interpret.core.sample import draw
from tp_transformer.interpret.roles.analysis import layer_clusters
from tp_transformer.model import bundled, checkpoint
from tp_transformer.model.checkpoint import AnyModel, load, model_path
from tp_transformer.model.folder import WEIGHTS
from tp_transformer.model.transformer import Transformer
from tp_transformer.report.cards import CardFacts, model_card, settings_file
from tp_transformer.runtime.files import atomic_write
from tp_transformer.runtime.progress import Show
from tp_transformer.runtime.provenance import Values
from tp_transformer.runtime.run_folder import read_origin, run_of
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.training.history import HISTORY, history_of


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
    _check_folder(folder, is_package=out is None)
    sources = {_run_of(source).name: source for source in (run, twin) if source is not None}
    if twin is not None and len(sources) < 2:
        raise SettingsError(f"{run} and {twin} would both be bundled as {next(iter(sources))}")
    store = open_store(read_origin(_run_of(run))["data"] if data is None else data)
    if not _test_splits(store):
        raise StoreError(f"{store.path} has no test questions to score; name another with --data")
    facts = [_facts(name, source, store, device, show) for name, source in sources.items()]
    others = [name for name in bundled.names(folder) if name not in sources]
    try:
        with atomic_write(folder) as unfinished:
            unfinished.mkdir()
            for model, other in zip(facts, reversed(facts), strict=True):
                _write_model(unfinished / model.name, model, None if other is model else other)
                if (clusters := _roles(model.model, store)) is not None:
                    text = json.dumps(clusters)
                    (unfinished / model.name / bundled.ROLES).write_text(text, "utf-8")
            for name in others:
                shutil.copytree(folder / name, unfinished / name)
            index = json.dumps([*sources, *others], indent=1) + "\n"
            (unfinished / bundled.INDEX).write_text(index, "utf-8")
    except OSError as error:
        raise FolderError(f"cannot write {folder}: {error}") from error
    return folder


def _check_folder(folder: Path, is_package: bool) -> None:
    """Raise before hours of scoring if the folder is something else than bundled models."""
    if is_package and not (folder.parents[2] / "pyproject.toml").is_file():
        raise FolderError(
            f"the package in {folder.parent} is not a source checkout; name another folder to "
            "write with --out"
        )
    for path in (folder, *folder.absolute().parents):
        if path.is_file():
            raise FolderError(f"{path} is a file; name a folder")
    if folder.is_dir() and not _has_only_models(folder):
        raise FolderError(f"{folder} holds something else than bundled models; name a new folder")


def _has_only_models(folder: Path) -> bool:
    """Whether a folder is empty or has what `tpt bundle` writes."""
    entries = {entry.name for entry in folder.iterdir()}
    try:
        names = bundled.names(folder)
    except (OSError, ValueError, TypeError):
        return False
    return entries <= {bundled.INDEX, *names} and all(
        (folder / name / WEIGHTS).is_file() for name in names
    )


def _run_of(source: str | Path) -> Path:
    path = Path(source)
    run = run_of(path) if path.exists() else None
    if run is None:
        raise FolderError(f"{path} is not a run of `tpt train`, nor a checkpoint of one")
    return run


def _test_splits(store: Store) -> tuple[str, ...]:
    return tuple(name for name in store if name != TRAIN)


def _facts(
    name: str, source: str | Path, store: Store, device: str, show: Show | None
) -> CardFacts:
    """Load, round and score the model of a run."""
    path = model_path(Path(source)).resolve()
    model, history = rounded(load(path)), history_of(path)
    if history is None:
        raise FolderError(f"{path} has no record of its training")
    choice, work = QuestionChoice(splits=_test_splits(store)), EvaluationOptions(diagnose=0)
    results = evaluate(model, store, choice=choice, options=work, device=device, show=show)
    described = checkpoint.describe(model, path, results.model["sha256"])
    seen = _seen_in_training(_run_of(source), store)
    results = replace(
        results,
        model={**described, "name": name},
        data={**results.data, "seen_in_training": seen},
    )
    return CardFacts(name=name, model=model, results=results, history=history)


def rounded(model: AnyModel) -> AnyModel:
    """Round the weights of a model to bfloat16, in place; their type stays the same."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(tensor.bfloat16())
    return model


def _seen_in_training(run: Path, store: Store) -> int | None:
    """Count the test questions that also occur in the training split of a run's store.

    None if that store is no longer there.
    """
    try:
        trained = open_store(read_origin(run)["data"])[TRAIN]
    except (OSError, UserError):
        return None
    asked = [example.question for name in _test_splits(store) for example in store[name]]
    value_set = pa.array(dict.fromkeys(asked), pa.string())
    seen: set[str] = set()
    for segment in trained.segments:
        for batch in trained.batches(segment):
            questions = batch["question"]
            hits = compute.is_in(questions, value_set=value_set)
            seen.update(questions.filter(hits).to_pylist())
    return sum(question in seen for question in asked)


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


def _write_model(folder: Path, facts: CardFacts, twin: CardFacts | None) -> None:
    facts.model.save(folder)
    facts.results.save(folder / bundled.RESULTS)
    history = json.dumps(msgspec.to_builtins(facts.history), indent=1, ensure_ascii=False) + "\n"
    (folder / HISTORY).write_text(history, "utf-8")
    for number, stage in enumerate(facts.history.stages, 1):
        text = settings.dump(stage.settings)
        (folder / settings_file(number)).write_text(text, "utf-8", newline="\n")
    (folder / bundled.CARD).write_text(model_card(facts, twin), "utf-8", newline="\n")
