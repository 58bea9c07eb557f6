"""The scales of a reproduction: which rows of Table 1, on what, for how long.

At one scale, all rows have the same settings of data, optimizer, training and validation, and the
runs of one seed train on the same sequence of samples: only the models differ. The exception is
`paper`, where each row has the settings of its own paper.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tp_transformer.data.mathematics.produce import Order
from tp_transformer.settings import run_values
from tp_transformer.training.config import RunConfig, run_config, section_kinds

Settings = Mapping[str, Any]  # such as {"model.d_ff": 64}


@dataclass(frozen=True, kw_only=True)
class ScaleRow:
    """A row of Table 1 at some scale."""

    name: str  # the preset of the row of the paper; also the name of its folder
    preset: str  # that is trained
    settings: Settings = field(default_factory=dict)  # changes of the preset
    analyses: tuple[str, ...] = ()  # of its first seed


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What a reproduction trains, scores and interprets."""

    name: str  # as `--scale` names it
    rows: tuple[ScaleRow, ...]
    modules: tuple[str, ...] = ("*",)  # of the questions to train and test on
    seeds: tuple[int, ...] = (0,)  # each row is trained once with each
    settings: Settings = field(default_factory=dict)  # changes of the presets of all rows
    order: Order | None = None  # the questions to generate; absent: the store must be given
    analysed_module: str = "arithmetic__mixed"  # of the questions of analyses
    analysed: int = 128  # number of these questions

    def config(self, row: ScaleRow, seed: int, changed: Settings | None = None) -> RunConfig:
        """Return all settings of a run, with some of them changed."""
        modules = {} if self.modules == ("*",) else {"data.modules": list(self.modules)}
        changes = {**modules, **self.settings, **row.settings, "training.seed": seed}
        texts = {name: json.dumps(value) for name, value in {**changes, **(changed or {})}.items()}
        return run_config(run_values(row.preset, texts, section_kinds()))


def _settings(
    batch_size: int, rate: float, *, warmup: int, steps: int, every: int, count: int
) -> Settings:
    """Return the settings of all rows: the optimizer of the paper, whatever their presets have.

    The learning rate is larger than the paper's, and decreases.
    """
    return {
        "data.batch_size": batch_size,
        "optim.optimizer": "adam",
        "optim.adam_rate": 1.0,
        "optim.betas": [0.9, 0.995],
        "optim.eps": 1e-8,
        "optim.clip_norm": 1.0,
        "optim.clip_value": None,
        "optim.schedule": "cosine",
        "optim.cooldown": 0.0,
        "training.ema": None,
        "optim.learning_rate": rate,
        "optim.warmup": warmup,
        "training.steps": steps,
        "validation.every": every,
        "validation.count": count,
    }


_WITHOUT_STRUCTURE = ("attention", "information", "tensor-product")
_WITH_STRUCTURE = ("roles", "attention", "information", "binding", "tensor-product")


def _rows(
    size: str, b: Settings, c: Settings, d_hidden: int, analyses: tuple[str, ...]
) -> dict[str, ScaleRow]:
    """Return the rows of Table 1 at a smaller size, except the Transformer of Saxton et al.

    They have the proportions of Table 1: B has as many parameters as the Transformer, C fewer by a
    smaller d_ff, both without a bound embedding; the LSTM has 0.4 times those of the Transformer.
    """
    tp, plain = f"tp-transformer-{size}", f"transformer-{size}"
    unbound = {"model.embedding_binding": False}
    lstm = {"model.d_hidden": d_hidden}
    rows = (
        ScaleRow(name="lstm-saxton", preset="lstm-saxton", settings=lstm),
        ScaleRow(name="transformer", preset=plain, analyses=("information",)),
        ScaleRow(name="tp-transformer", preset=tp, analyses=analyses),
        ScaleRow(name="tp-transformer-b", preset=tp, settings={**unbound, **b}),
        ScaleRow(name="tp-transformer-c", preset=tp, settings={**unbound, **c}),
    )
    return {row.name: row for row in rows}


_TINY = _rows(
    "tiny",
    b={"model.d_model": 60, "model.d_ff": 240},
    c={"model.d_ff": 64},
    d_hidden=112,
    analyses=_WITHOUT_STRUCTURE,
)
_SMALL = _rows(
    "small",
    b={"model.d_model": 120, "model.d_ff": 480},
    c={"model.d_ff": 128},
    d_hidden=320,
    analyses=_WITH_STRUCTURE,
)
_EASY = ("comparison__pair", "numbers__place_value", "numbers__round_number")
_MIDDLE = (
    *("arithmetic__add_or_sub", "comparison__closest", "comparison__kth_biggest"),
    *("comparison__sort", *_EASY),
)
_HARDER = (
    *("arithmetic__add_sub_multiple", "arithmetic__div", "arithmetic__mixed", "arithmetic__mul"),
    *("arithmetic__mul_div_multiple", "measurement__time", *_MIDDLE),
)

MINUTES = Scale(
    name="minutes",
    rows=(
        _TINY["lstm-saxton"],
        _TINY["transformer"],
        replace(_TINY["tp-transformer"], analyses=("attention", "information")),
    ),
    modules=_EASY,
    seeds=(0, 1),
    settings=_settings(32, 2e-3, warmup=100, steps=2500, every=250, count=300),
    order=Order(modules=_EASY, count=8000, test_count=1000),
    analysed_module="numbers__place_value",
    analysed=64,
)
HOUR = Scale(
    name="hour",
    rows=tuple(_TINY.values()),
    modules=_MIDDLE,
    seeds=(0, 1),
    settings=_settings(64, 2e-3, warmup=200, steps=5000, every=500, count=512),
    order=Order(modules=_MIDDLE, count=20_000, test_count=1000),
    analysed_module="arithmetic__add_or_sub",
)
OVERNIGHT = Scale(
    name="overnight",
    rows=tuple(_SMALL.values()),
    modules=_HARDER,
    seeds=(0, 1),
    settings=_settings(128, 1e-3, warmup=500, steps=8000, every=500, count=1024),
    order=Order(modules=_HARDER, count=50_000, test_count=1000),
)
PAPER = Scale(
    name="paper",
    rows=(
        ScaleRow(name="lstm-saxton", preset="lstm-saxton"),
        ScaleRow(name="transformer-saxton", preset="transformer-saxton"),
        ScaleRow(name="transformer", preset="transformer", analyses=("information", "attention")),
        ScaleRow(
            name="tp-transformer",
            preset="tp-transformer",
            analyses=(*_WITH_STRUCTURE, "interchange", "surgery"),
        ),
        ScaleRow(name="tp-transformer-b", preset="tp-transformer-b"),
        ScaleRow(name="tp-transformer-c", preset="tp-transformer-c"),
    ),
    settings={"training.precision": "bfloat16"},
)
SCALES = {scale.name: scale for scale in (MINUTES, HOUR, OVERNIGHT, PAPER)}
