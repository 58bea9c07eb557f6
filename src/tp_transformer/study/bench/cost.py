"""The cost of a training step of each variant, measured side by side in one process.

Speeds of runs that trained at the same time depend on what else the machine did. Here the variants
take turns on the same batches, in rounds, and only their own processor time counts.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from tp_transformer.data.store import open_store
from tp_transformer.registry import load_extensions
from tp_transformer.runtime.ranks import open_ranks
from tp_transformer.training.config import RunConfig
from tp_transformer.training.setup import make_loop

ROUNDS = 10
STEPS = 2  # of a variant in a round: `Loop.measure` takes one to warm up and one more

StepSeconds = dict[str, list[float]]  # of each variant, the seconds of a step in each round


@dataclass(frozen=True)
class CostRequest:
    """A store, and the settings of the runs on it by variant."""

    data: Path
    configs: Mapping[str, RunConfig]


def measure_costs(request: CostRequest) -> StepSeconds:
    """Return the processor seconds of a step of each variant in each round, with one thread.

    The batches are prepared in another thread, whose time does not count. A first round, which is
    slower, is left out.
    """
    load_extensions()
    torch.set_num_threads(1)
    with open_ranks("cpu") as ranks:
        loops, store = {}, open_store(request.data)
        for variant, config in request.configs.items():
            endless = replace(config, training=replace(config.training, steps=10**6))
            loops[variant] = make_loop(endless, store, request.data, ranks)
        seconds: StepSeconds = {variant: [] for variant in loops}
        names = list(loops)
        for number in range(ROUNDS + 1):
            turn = number % len(names)
            for variant in (*names[turn:], *names[:turn]):  # each is the first one in turn
                start = time.thread_time()
                loops[variant].measure(0.0)
                seconds[variant].append((time.thread_time() - start) / STEPS)
    return {variant: own[1:] for variant, own in seconds.items()}


def relative_cost(seconds: StepSeconds, variant: str, reference: str) -> float | None:
    """Return the median over rounds of the cost of a step, relative to that of the reference."""
    if variant not in seconds or reference not in seconds:
        return None
    pairs = zip(seconds[variant], seconds[reference], strict=True)
    return median(own / other for own, other in pairs)
