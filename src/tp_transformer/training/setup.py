"""Setting up a run: what it is, its loop, and whether its model and its data fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch

from tp_transformer import settings
from tp_transformer.data.sampling import STEPS_AHEAD, Feed, FeedConfig
from tp_transformer.data.store import MANIFEST, TRAIN, Split, Store, open_store
from tp_transformer.errors import FolderError, SettingsError, UserError
from tp_transformer.model.bundled import find
from tp_transformer.model.checkpoint import AnyModel, class_of, from_config, load, model_hash
from tp_transformer.runtime.memory import refuse_beyond_memory
from tp_transformer.runtime.ranks import Ranks
from tp_transformer.runtime.run_folder import CONFIG, ORIGIN, read_origin, sha256
from tp_transformer.settings import Values, to_values
from tp_transformer.training.config import (
    Limits,
    RunConfig,
    check_changes,
    config_values,
    run_config,
    section_kinds,
)
from tp_transformer.training.loop import Loop
from tp_transformer.training.optim import follows_progress
from tp_transformer.training.record import AnyLogger, names_in
from tp_transformer.training.validate import monitored

_FREE = ("dropout", "initialisation")  # settings of a model that its weights do not depend on


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `train`; None for those that an existing run has recorded."""

    run: Path
    config: RunConfig | str | Path | None
    data: Store | str | Path | None
    init_from: str | Path | None
    loggers: Sequence[AnyLogger] = ()


class RunPlan(msgspec.Struct, kw_only=True):
    """What a run is, from the request and from what its folder has recorded.

    Attributes:
        settings: all settings, by section
        recorded: the settings before this call
        origin: contents of run.json; empty for a new run
        data: folder of the store
        data_sha256: of its manifest
        init_from: folder of the model that the run starts from
        loggers: by name
    """

    settings: dict[str, Values]
    recorded: dict[str, Values]
    origin: Values
    data: str
    data_sha256: str
    init_from: str | None
    loggers: list[str]

    @property
    def changes(self) -> dict[str, Values]:
        """The settings that this call changes, by section."""
        changes: dict[str, Values] = {}
        for (section, key), value in settings.changed(self.recorded, self.settings).items():
            changes.setdefault(section, {})[key] = value
        return changes


def prepare(request: Request, ranks: Ranks) -> tuple[RunPlan, Loop]:
    """Return what a run is, and its loop with an untrained model; nothing is written.

    Rank 0 reads the folder of the run and sends the plan to the others, which may be on machines
    with other disks.
    """
    stores: list[Store] = []

    def plan_run() -> Values:
        plan, store = _resolve(request)
        stores.append(store)
        values: Values = msgspec.to_builtins(plan)
        return values

    plan = msgspec.convert(ranks.first(plan_run), RunPlan)
    ranks.each(lambda: names_in(plan.loggers))

    def make() -> Loop:
        store = stores[0] if stores else open_store(plan.data)
        return make_loop(run_config(plan.settings), store, request.run, ranks)

    return plan, ranks.each(make)


def _resolve(request: Request) -> tuple[RunPlan, Store]:
    """Return the plan of a run and its store."""
    run = request.run
    origin = read_origin(run) if (run / ORIGIN).is_file() else {}
    if not origin:
        _check_new_folder(run)
    recorded = recorded_config(run, origin) if origin else None
    config, data = request.config or recorded, request.data or origin.get("data")
    if isinstance(config, str | Path):
        config = RunConfig.of(config)
    if config is None or data is None:
        raise UserError(f"{run} is not a run yet: to start one, give --config and --data")
    try:
        store = data if isinstance(data, Store) else open_store(Path(data).resolve())
    except (OSError, ValueError) as error:  # also a path that is invalid or too long
        raise UserError(f"cannot read the store of the run: {error!r:.200}") from error
    # As many rows of the embedding as the task has tokens.
    model = class_of(config.model).sized(config.model, store.task.vocabulary)
    config = replace(config, model=model)
    fingerprint = sha256(store.path / MANIFEST) or ""
    if recorded is not None:
        check_changes(run, recorded, config)
        if fingerprint != origin["data_sha256"]:
            raise UserError(f"{run} was started on other data ({origin['data']}), not {store.path}")
    plan = RunPlan(
        settings=config_values(config),
        recorded=config_values(recorded or config),
        origin=origin,
        data=str(store.path.resolve()),
        data_sha256=fingerprint,
        init_from=_initial_model(request, origin),
        loggers=names_in(request.loggers) or origin.get("loggers", []),
    )
    return plan, store


def _check_new_folder(run: Path) -> None:
    """Raise if a folder contains anything but the lock of a run that was killed at its start."""
    if run.exists() and not run.is_dir():
        raise FolderError(f"{run} is a file; choose a new folder")
    names = sorted(entry.name for entry in run.iterdir()) if run.exists() else []
    for name in names:
        if not name.startswith("."):
            raise FolderError(f"{run} holds something else ({name}); choose a new folder")


def _initial_model(request: Request, origin: Values) -> str | None:
    """Return the folder of the model that a run starts from; raise if a run has another one."""
    folder = None if request.init_from is None else str(find(request.init_from).absolute())
    if not origin:
        return folder
    recorded: str | None = origin.get("init_from", {}).get("folder")
    if folder not in (None, recorded):
        start = "from no other model" if recorded is None else f"from {recorded}"
        raise SettingsError(f"{request.run} was started {start}, not from {folder}; use a new run")
    return recorded


def recorded_config(run: Path, origin: Values) -> RunConfig:
    """Return the settings of an existing run."""
    if origin.get("settings") is not None:
        return run_config(origin["settings"])
    file = run / CONFIG  # of an earlier version, which kept the settings in this file only
    if sha256(file) != origin.get("config_sha256"):
        raise SettingsError(f"{file} was changed after the run was started; restore it")
    return run_config(settings.run_values(file, {}, section_kinds()))


def make_loop(config: RunConfig, store: Store, run: Path, ranks: Ranks) -> Loop:
    """Return the loop of a run, with an untrained model."""
    split = store[TRAIN]
    if config.data.batch_size < ranks.n_ranks:
        raise SettingsError(
            f"a batch of {config.data.batch_size} cannot be divided among {ranks.n_ranks} ranks"
        )
    torch.manual_seed(config.training.seed)
    model = from_config(config.model, store.task.vocabulary)
    model.max_answer = store.task.max_answer or max(each.max_lengths[1] for each in store.values())
    _check_lengths(model, split, config.data)
    _check_sizes(model, split, config.data, ranks)
    feed = Feed(
        split,
        batch_size=config.data.batch_size,
        seed=config.training.seed,
        modules=config.data.modules,
        weights=config.data.weights,
        vocabulary=model.vocabulary,
        held_out=config.validation.count,
    )
    monitor = None
    if config.validation.monitor:
        if not store.task.test_splits:
            raise SettingsError(f"{store.path} has no test split to monitor")
        test = store[store.task.test_splits[0]]
        _check_lengths(model, test, config.data)
        count = config.validation.monitor
        monitor = monitored(test, config.data.modules, count, model.vocabulary)
    return Loop(model.to(ranks.device), feed, run, ranks, config, monitor)


def initialise(loop: Loop, folder: str) -> str:
    """Give the model of a loop the weights of another model; return the hash of that model."""
    model, other = loop.model, load(folder)
    ours, theirs = (
        {"model": {k: v for k, v in each.config_values(each.config).items() if k not in _FREE}}
        for each in (model, other)
    )
    differences = settings.differences(theirs, ours)
    if other.vocabulary != model.vocabulary:
        differences.append("its vocabulary is another one")
    if differences:
        raise SettingsError(f"{folder} has another architecture than the run: {differences[0]}")
    weights = dict(other.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
            if loop.ema is not None:
                loop.ema.weights[name].copy_(weights[name])
    return model_hash(other)


def effects_of_changes(loop: Loop, recorded: RunConfig) -> list[str]:
    """Describe the settings of a run that are changed, and what this means for its past steps."""
    old, new = (
        {"training": to_values(training), "optim": to_values(optim)}
        for training, optim in (
            (recorded.training, recorded.optim),
            (loop.training, loop.optim),
        )
    )
    texts = [f"changed: {text}" for text in settings.differences(new, old)]
    step, limits = loop.state.step, loop.limits
    past = Limits.of(recorded.training, limits.batch_size, limits.n_rows)
    if follows_progress(
        recorded.optim, past.progress(step, loop.state.elapsed)
    ) or follows_progress(loop.optim, loop.progress):
        texts.append(
            f"the learning rates up to step {step:,} were those of the earlier settings; a run "
            "with the present settings from its start would differ"
        )
    return texts


def _check_lengths(model: AnyModel, split: Split, config: FeedConfig) -> None:
    """Raise if a text has more tokens than the model has positions."""
    for segment in split.select(config.modules):
        longest = max(len(segment.question_lengths), len(segment.answer_lengths)) - 1
        if model.n_positions is not None and longest + 2 > model.n_positions:
            raise SettingsError(
                f"{segment.module} has texts of {longest} tokens; the model reads at most "
                f"{model.n_positions - 2}"
            )


def _check_sizes(model: AnyModel, split: Split, config: FeedConfig, ranks: Ranks) -> None:
    """Raise if a model or a batch would not fit into memory."""
    if ranks.device.type == "cpu":  # weights, gradient and two averages of Adam
        refuse_beyond_memory("weights, gradient and averages", 16 * model.n_parameters)
    segments = split.select(config.modules)
    n_tokens = sum(
        n * length
        for segment in segments
        for lengths in (segment.question_lengths, segment.answer_lengths)
        for length, n in enumerate(lengths)
    )
    mean = n_tokens // max(1, sum(segment.count for segment in segments))
    ids = config.batch_size // ranks.n_ranks * (4 + mean)
    refuse_beyond_memory(f"batches of {config.batch_size:,}", 8 * ids * STEPS_AHEAD)
