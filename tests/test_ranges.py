"""Values are converted to the types of settings, or rejected with what would be valid."""

import math
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import pytest
from msgspec import Meta

import tp_transformer as tpt
from commands import options, verbs
from tp_transformer import settings
from tp_transformer.cli import main
from tp_transformer.data.mathematics.produce import Order
from tp_transformer.data.sampling import FeedConfig
from tp_transformer.errors import SettingsError
from tp_transformer.interpret.analyses import ANALYSES, AnalysisRequest, StoreRequest
from tp_transformer.model.binding import BINDINGS
from tp_transformer.model.checkpoint import from_config, model_config
from tp_transformer.model.recurrent import LSTMConfig
from tp_transformer.model.transformer import TransformerConfig
from tp_transformer.ranges import (
    OpenShare,
    Positive,
    PositiveInt,
    Seed,
    Share,
    ShareBelowOne,
    Size,
    check,
    convert,
    short_repr,
)
from tp_transformer.runtime import memory
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.training.config import TrainingConfig
from tp_transformer.training.optim import OptimConfig
from tp_transformer.training.validate import ValidationConfig

STAGES = (
    *(TransformerConfig, LSTMConfig, FeedConfig, OptimConfig, TrainingConfig, ValidationConfig),
    *(Order, QuestionChoice, EvaluationOptions, AnalysisRequest, StoreRequest),
    *(analysis.options for analysis in ANALYSES.values()),
)
ODD = (
    *(-1, 0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**23, 10**30),
    *(10**400, 1 << 20_000, math.nan, math.inf, -math.inf, 1e44, 1e-320, -0.5, True),
)


def bounds(hint):
    """The ranges within a type."""
    if isinstance(hint, Meta):
        return [hint]
    return [limits for part in get_args(hint) for limits in bounds(part)]


def has_number(hint):
    return hint in (int, float) or any(map(has_number, get_args(hint)))


@pytest.mark.parametrize("stage", STAGES)
def test_every_number_among_the_settings_has_a_range(stage):
    for name, hint in get_type_hints(stage, include_extras=True).items():
        assert bool(bounds(hint)) == has_number(hint), name


@pytest.mark.parametrize(("words", "verb"), verbs())
def test_every_number_among_the_options_has_a_range(words, verb):
    for option in options(words):
        hint = option.field_info.annotation
        assert bool(bounds(hint)) == has_number(hint), option.name


NUMERIC = [
    pytest.param(stage, name, hint, id=f"{stage.__name__}.{name}")
    for stage in STAGES
    for name, hint in get_type_hints(stage, include_extras=True).items()
    if bounds(hint)
]


def rejection(make, *arguments, **fields):
    """The message of an error; None if there was none."""
    try:
        make(*arguments, **fields)
    except SettingsError as error:
        return str(error)
    return None


def is_within(limits, value):
    least = value >= limits.ge if limits.gt is None else value > limits.gt
    return least and (value <= limits.le if limits.lt is None else value < limits.lt)


@pytest.mark.parametrize(("stage", "name", "hint"), NUMERIC)
def test_settings_are_made_or_rejected_in_one_line(stage, name, hint):
    """From Python, and from what a file says."""
    for value in ODD:
        fields = {name: {"betas": (0.9, value), "weights": {"a": value}}.get(name, value)}
        for message in (
            rejection(stage, **fields),
            rejection(settings.to_dataclass, stage, fields, "it"),
        ):
            if message is None:
                assert value is not True
                assert is_within(bounds(hint)[0], value)
            else:
                assert "\n" not in message
                assert len(message) < 300


@pytest.mark.parametrize(
    "values",
    [
        {"n_layers": 10_000},
        {"n_vocab": 2**31 - 1},
        {"binding": "tensor", "n_heads": 1},
        {"binding": "dictionary", "n_roles": 2**31 - 1},
        {"architecture": "lstm", "d_hidden": 2**31 - 1},
    ],
)
def test_sizes_beyond_the_memory_are_refused(values, monkeypatch):
    """Before they are asked for: what Linux has granted, it may take back with the process."""
    monkeypatch.setattr(memory, "memory_limit", lambda: 2**30)
    with pytest.raises(SettingsError, match=r"weights of these sizes take at least .* GiB"):
        from_config(model_config(values))


@pytest.mark.parametrize("binding", BINDINGS)
def test_the_bound_of_a_models_size_is_one_and_near(binding):
    rank = {"rank": 40} if binding == "low-rank" else {}
    sizes = {"d_model": 64, "d_ff": 96, "n_layers": 3, "embedding_binding": False}
    model = tpt.build("tp-transformer-tiny", binding=binding, **rank, **sizes)
    held = model.n_parameters + model.config.n_positions * model.config.d_model
    assert 0.6 * held < model.config.least_numbers <= held


def test_the_bound_of_an_lstms_size_is_one_and_near():
    model = tpt.build("lstm-saxton", d_hidden=64)
    assert 0.9 * model.n_parameters < model.config.least_numbers <= model.n_parameters


LARGEST = 2**63 - 1
PAIR = tuple[ShareBelowOne, ShareBelowOne]


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (PositiveInt, 0, "1 or more, not 0"),
        (PositiveInt, "-5", "1 or more, not -5"),
        (PositiveInt, 2**63, f"at most {LARGEST}, not {2**63}"),
        (PositiveInt, 1.5, "a whole number, not 1.5"),
        (PositiveInt, True, "a whole number, not True"),
        (PositiveInt | None, "a", "a whole number, not 'a'"),
        (PositiveInt, None, "a whole number, not None"),
        (Size, 0, f"from 1 to {2**31 - 1}, not 0"),
        (Seed, 10**400, f"at most {LARGEST}, not a number of 401 digits"),
        (Positive, 0.0, "above 0, not 0.0"),
        (Positive, math.nan, "above 0, not nan"),
        (Positive, "x", "a number, not 'x'"),
        (Share, 2, "from 0 to 1, not 2"),
        (ShareBelowOne, 1.0, "0 or more and below 1, not 1.0"),
        (OpenShare, 0, "above 0 and below 1, not 0"),
        (PAIR, [0.5, 2], "0 or more and below 1, not 2"),
        (PAIR, [0.5], "a list of 2 numbers, not [0.5]"),
        (tuple[str, ...], ["a", 1], "a list of texts, not ['a', 1]"),
        (dict[str, Positive], [1], "a mapping, not [1]"),
        (bool, 1, "true or false, not 1"),
        (bool | None, "maybe", "true or false, not 'maybe'"),
        (Literal["round", "square"], "rnud", "one of round, square (did you mean 'round'?), not"),
        (str, 3, "a text, not 3"),
    ],
)
def test_what_is_valid_is_said_in_words(hint, value, message):
    with pytest.raises(SettingsError) as error:
        convert("x", value, hint)
    assert str(error.value).startswith(f"x must be {message}")


def test_an_element_of_a_mapping_is_named():
    with pytest.raises(SettingsError, match=r"^x\.a must be above 0, not -1$"):
        convert("x", {"a": -1}, dict[str, Positive])


@pytest.mark.parametrize(
    ("hint", "value", "converted"),
    [
        (Seed, LARGEST, LARGEST),
        (Seed, "5", 5),
        (Seed, np.int64(5), 5),
        (PositiveInt | None, None, None),
        (PositiveInt | None, "null", None),
        (Positive, 2, 2.0),
        (Positive | None, "1e-3", 0.001),
        (bool, "false", False),
        (PAIR, [0, 0.5], (0.0, 0.5)),
        (tuple[str, ...], ["a", "1"], ("a", "1")),
        (dict[str, Positive], {"a": 1}, {"a": 1.0}),
        (dict[str, Any], {"a": (1, 2)}, {"a": (1, 2)}),
        (Path | None, "a", Path("a")),
    ],
)
def test_values_get_the_type(hint, value, converted):
    result = convert("x", value, hint)
    assert repr(result) == repr(converted)


@pytest.mark.parametrize(("hint", "value"), [(Seed, "5"), (bool, "false"), (PositiveInt, 0)])
def test_a_check_does_not_convert_texts(hint, value):
    with pytest.raises(SettingsError, match="x must be"):
        check("x", value, hint)


def test_any_value_can_be_shown():
    bomb: list[object] = []
    for _ in range(60):
        bomb = [bomb, bomb]
    for value in (bomb, [1 << 20_000], 1 << 20_000, "x" * 10**6, {"a": [1 << 20_000]}, None):
        assert len(short_repr(value)) < 300


@pytest.mark.parametrize(
    "command",
    [
        "data show STORE --samples",
        "data generate --out OUT --workers",
        "evaluate --model MODEL --data STORE --out OUT --decode",
        "solve 1 --model MODEL --length-penalty",
        "interpret roles --model MODEL --data STORE --out OUT --layer",
    ],
)
def test_arguments_out_of_range_end_in_one_line(capsys, tmp_path, sums_store, command):
    paths = {"STORE": str(sums_store), "MODEL": "none", "OUT": str(tmp_path / "out")}
    for value in ("-100000", "1" + "0" * 23, "9" * 400, "9" * 5000, "nan"):
        with pytest.raises(SystemExit) as end:
            main([paths.get(word, word) for word in command.split()] + [value])
        captured = capsys.readouterr()
        assert (end.value.code, captured.out) == (2, "")
        assert captured.err.startswith("tpt: ")
        assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_largest_seeds_are_taken(capsys, sums_store):
    main(["data", "show", str(sums_store), "--seed", str(LARGEST), "--json"])
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{n_positions: 1" + "0" * 30 + "}", "model.n_positions must be from 1 to"),
        ("{n_positions: " + "9" * 5000 + "}", "5000 digits"),
        ("{n_positions: 0x" + "f" * 9000 + "}", "digits"),
        ("{d_ff: 2000-99-99}", "is not YAML"),
        ("{dropout: 1" + "0" * 400 + "}", "model.dropout must be 0 or more and below 1"),
        ("[" * 1000, "is not YAML"),
        ("{}\ndata: {batch_size: 1000000000}", "batches of 1,000,000,000 take at least"),
    ],
)
def test_numbers_of_a_file_end_in_one_line(capsys, tmp_path, sums_store, text, message):
    run, file = tmp_path / "run", tmp_path / "mine.yaml"
    file.write_text(f"model: {text}")
    with pytest.raises(SystemExit) as end:
        main(["train", "--run", str(run), "--data", str(sums_store), "--config", str(file)])
    err = capsys.readouterr().err
    assert (end.value.code, err.count("\n")) == (2, 1)
    assert message in err
    assert not run.exists()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("no"),
        RuntimeError("[alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory\nmore"),
    ],
)
def test_memory_that_runs_out_ends_in_one_line(capsys, monkeypatch, error):
    def exhausted(*_):
        raise error

    monkeypatch.setattr("tp_transformer.report.cards.models_table", exhausted)
    with pytest.raises(SystemExit) as end:
        main(["models"])
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert err.startswith("tpt: there is not enough memory for this")
    assert err.count("\n") == 1
