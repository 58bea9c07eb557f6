"""Setting up the loop of a run: its model, its data, and whether both fit."""

from dataclasses import replace
from pathlib import Path

import torch

from tp_transformer import settings
from tp_transformer.data.sampling import STEPS_AHEAD, Feed, FeedConfig
from tp_transformer.data.store import TRAIN, Split, open_store
from tp_transformer.errors import SettingsError
from tp_transformer.model.checkpoint import AnyModel, from_config, load, model_hash
from tp_transformer.runtime.memory import refuse_beyond_memory
from tp_transformer.runtime.ranks import Ranks
from tp_transformer.settings import to_values
from tp_transformer.training.config import RunConfig
from tp_transformer.training.limits import seconds
from tp_transformer.training.loop import Loop
from tp_transformer.training.optim import follows_progress
from tp_transformer.training.validate import monitored

_FREE = ("dropout", "initialisation")  # settings of a model that its weights do not depend on


def make_loop(config: RunConfig, data: Path, run: Path, ranks: Ranks) -> Loop:
    """Return the loop of a run, with an untrained model."""
    store = open_store(data)
    split = store[TRAIN]
    if config.data.batch_size < ranks.n_ranks:
        raise SettingsError(
            f"a batch of {config.data.batch_size} cannot be divided among {ranks.n_ranks} ranks"
        )
    torch.manual_seed(config.training.seed)
    model = from_config(config.model, store.task.vocabulary)
    model.max_answer = store.task.max_answer or max(part.max_lengths[1] for part in store.values())
    _refuse_lengths(model, split, config.data)
    _refuse_sizes(model, split, config.data, ranks)
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
            raise SettingsError(f"{data} has no test split to monitor")
        test = store[store.task.test_splits[0]]
        _refuse_lengths(model, test, config.data)
        count = config.validation.monitor
        monitor = monitored(test, config.data.modules, count, model.vocabulary)
    return Loop(
        model.to(ranks.device),
        feed,
        run,
        ranks,
        optim=config.optim,
        training=config.training,
        validation=config.validation,
        monitor=monitor,
    )


def initialise(loop: Loop, folder: str) -> str:
    """Give the model of a loop the weights of another model; return the hash of that model."""
    model, other = loop.model, load(folder)
    ours, theirs = (
        {"model": {k: v for k, v in one.config_values(one.config).items() if k not in _FREE}}
        for one in (model, other)
    )
    found = settings.differences(theirs, ours)
    if other.vocabulary != model.vocabulary:
        found.append("its vocabulary is another one")
    if found:
        raise SettingsError(f"{folder} has another architecture than the run: {found[0]}")
    weights = dict(other.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
            if loop.ema is not None:
                loop.ema.weights[name].copy_(weights[name])
    return model_hash(other)


def changes(loop: Loop, earlier: RunConfig) -> list[str]:
    """Describe the settings of a run that are changed, and what this means for its past steps."""
    old, new = earlier.training, loop.training
    before, after = (
        {"training": to_values(training), "optim": to_values(optim)}
        for training, optim in ((old, earlier.optim), (new, loop.optim))
    )
    texts = [f"changed: {text}" for text in settings.differences(after, before)]
    budget = None if old.budget is None else seconds(old.budget)
    limits = replace(loop.limits, steps=old.steps, epochs=old.epochs, budget=budget)
    past = limits.progress(loop.state.step, loop.state.elapsed)
    if follows_progress(earlier.optim, past) or follows_progress(loop.optim, loop.progress):
        texts.append(
            f"the learning rates up to step {loop.state.step:,} were those of the earlier "
            "settings; a run with the present settings from its start would differ"
        )
    return texts


def _refuse_lengths(model: AnyModel, split: Split, config: FeedConfig) -> None:
    """Raise if a text has more tokens than the model has positions."""
    for segment in split.select(config.modules):
        longest = max(len(segment.question_lengths), len(segment.answer_lengths)) - 1
        if model.n_positions is not None and longest + 2 > model.n_positions:
            raise SettingsError(
                f"{segment.module} has texts of {longest} tokens; the model reads at most "
                f"{model.n_positions - 2}"
            )


def _refuse_sizes(model: AnyModel, split: Split, config: FeedConfig, ranks: Ranks) -> None:
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
