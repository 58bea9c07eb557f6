"""Setting up the loop of a run: its model, its data, and whether both fit."""

from pathlib import Path

import torch

from tp_transformer.data.feed import STEPS_AHEAD, Feed, FeedConfig
from tp_transformer.data.store import TRAIN, Split, open_store
from tp_transformer.foundation.allocator import refuse_beyond_memory
from tp_transformer.foundation.distributed import Ranks
from tp_transformer.foundation.errors import SettingsError
from tp_transformer.model.family import AnyModel, from_config
from tp_transformer.training.config import RunConfig
from tp_transformer.training.loop import Loop
from tp_transformer.training.validate import monitored


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
    model.max_answer = store.task.max_answer or max(one.max_lengths[1] for one in store.values())
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


def _refuse_lengths(model: AnyModel, split: Split, config: FeedConfig) -> None:
    """Raise if a text has more tokens than the model has positions."""
    for one in split.select(config.modules):
        longest = max(len(one.question_lengths), len(one.answer_lengths)) - 1
        if model.n_positions is not None and longest + 2 > model.n_positions:
            raise SettingsError(
                f"{one.module} has texts of {longest} tokens; the model reads at most "
                f"{model.n_positions - 2}"
            )


def _refuse_sizes(model: AnyModel, split: Split, config: FeedConfig, ranks: Ranks) -> None:
    """Raise if a model or a batch would not fit into memory."""
    if ranks.device.type == "cpu":  # weights, gradient and two averages of Adam
        refuse_beyond_memory("weights, gradient and averages", 16 * model.n_parameters)
    segments = split.select(config.modules)
    n_tokens = sum(
        n * length
        for one in segments
        for lengths in (one.question_lengths, one.answer_lengths)
        for length, n in enumerate(lengths)
    )
    mean = n_tokens // max(1, sum(one.count for one in segments))
    ids = config.batch_size // ranks.n_ranks * (4 + mean)
    refuse_beyond_memory(f"batches of {config.batch_size:,}", 8 * ids * STEPS_AHEAD)
