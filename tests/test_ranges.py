"""Numbers out of range: refused in one line, wherever they are given and however large they are."""

import math
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest

import tp_transformer as tpt
from commands import verbs
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
    Positive,
    PositiveInt,
    Range,
    Seed,
    ShareBelowOne,
    check,
    shown,
)
from tp_transformer.runtime import memory
from tp_transformer.scoring.options import Choice, Work
from tp_transformer.training.config import TrainingConfig
from tp_transformer.training.optim import OptimConfig
from tp_transformer.training.validate import ValidationConfig

STAGES = (
    *(TransformerConfig, LSTMConfig, FeedConfig, OptimConfig, TrainingConfig, ValidationConfig),
    *(Order, Choice, Work, AnalysisRequest, StoreRequest),
    *(analysis.options for analysis in ANALYSES.values()),
)
ODD = (
    *(-1, 0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**23, 10**30),
    *(10**400, 1 << 20_000, math.nan, math.inf, -math.inf, 1e44, 1e-320, -0.5, True),
)


def bounds(hint):
    """The ranges within a type."""
    if get_origin(hint) is Annotated:
        return [part for part in get_args(hint)[1:] if isinstance(part, Range)]
    return [one for part in get_args(hint) for one in bounds(part)]


def has_number(hint):
    return hint in (int, float) or any(map(has_number, get_args(hint)))


@pytest.mark.parametrize("stage", STAGES)
def test_every_number_among_the_settings_has_a_range(stage):
    for name, hint in get_type_hints(stage, include_extras=True).items():
        assert bool(bounds(hint)) == has_number(hint), name


@pytest.mark.parametrize(("words", "verb"), verbs())
def test_every_number_among_the_arguments_has_a_range(words, verb):
    for flag, argument in verb.arguments().items():
        hint = argument.get("type")
        assert bool(bounds(hint)) == has_number(hint), flag


NUMERIC = [
    pytest.param(stage, name, hint, id=f"{stage.__name__}.{name}")
    for stage in STAGES
    for name, hint in get_type_hints(stage, include_extras=True).items()
    if bounds(hint)
]


def refusal(make, *arguments, **options):
    """The message of a refusal; None if there was none."""
    try:
        make(*arguments, **options)
    except SettingsError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("stage", "name", "hint"), NUMERIC)
def test_settings_are_made_or_refused_in_one_line(stage, name, hint):
    """From Python, and from what a file says."""
    for value in ODD:
        given = {"betas": (0.9, value), "weights": {"a": value}}.get(name, value)
        values = {name: given}
        for said in (
            refusal(stage, **values),
            refusal(settings.to_dataclass, stage, values, "it"),
        ):
            if said is None:
                assert value is not True
                assert bounds(hint)[0].admits(value)
            else:
                assert "\n" not in said
                assert len(said) < 300


@pytest.mark.parametrize(
    "values",
    [
        {"d_model": 2**20},
        {"d_ff": 2**31 - 1},
        {"n_layers": 10_000},
        {"n_vocab": 2**31 - 1},
        {"n_positions": 2**31 - 1},
        {"binding": "tensor", "n_heads": 1},
        {"binding": "low-rank", "rank": 2**31 - 1},
        {"binding": "dictionary", "n_roles": 2**31 - 1},
        {"architecture": "lstm", "d_hidden": 2**31 - 1},
        {"architecture": "lstm", "n_vocab": 2**31 - 1},
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


def test_ranges_in_words():
    for hint, value, message in (
        (PositiveInt, 0, "x must be 1 or more, not 0"),
        (PositiveInt, 2**63, f"x must be at most {2**63 - 1}, not {2**63}"),
        (PositiveInt, 1.5, "x must be a whole number, not 1.5"),
        (PositiveInt, True, "x must be a whole number, not True"),
        (PositiveInt | None, "a", "x must be a whole number, not 'a'"),
        (Seed, -1, f"x must be from 0 to {2**64 - 1}, not -1"),
        (Positive, 0.0, "x must be above 0, not 0.0"),
        (Positive, math.nan, "x must be above 0, not nan"),
        (ShareBelowOne, 1.0, "x must be 0 or more and below 1, not 1.0"),
        (tuple[ShareBelowOne, ShareBelowOne], [0.5, 2], "x must be 0 or more and below 1, not 2"),
        (dict[str, Positive], {"a": -1}, "x.a must be above 0, not -1"),
        (Seed, 10**400, f"x must be from 0 to {2**64 - 1}, not a number of 401 digits"),
    ):
        with pytest.raises(SettingsError) as error:
            check("x", value, hint)
        assert str(error.value) == message
    for hint, value in ((PositiveInt, 1), (Seed, 2**64 - 1), (PositiveInt | None, None), (str, 3)):
        check("x", value, hint)


def test_any_value_can_be_shown():
    bomb: list[object] = []
    for _ in range(60):
        bomb = [bomb, bomb]
    for value in (bomb, [1 << 20_000], 1 << 20_000, "x" * 10**6, {"a": [1 << 20_000]}, None):
        assert len(shown(value)) < 300


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranges") / "model"
    tpt.build("tp-transformer-tiny", d_model=16, d_ff=16, n_layers=1).save(folder)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "show", "STORE", "--seed"],
        ["data", "show", "STORE", "--samples"],
        ["data", "generate", "--out", "OUT", "--seed"],
        ["data", "generate", "--out", "OUT", "--workers"],
        ["evaluate", "--model", "MODEL", "--data", "STORE", "--out", "OUT", "--decode"],
        ["evaluate", "--model", "MODEL", "--data", "STORE", "--out", "OUT", "--seed"],
        ["evaluate", "--model", "MODEL", "--data", "STORE", "--out", "OUT", "--train-count"],
        ["solve", "1", "--model", "MODEL", "--length-penalty"],
        ["solve", "1", "--model", "MODEL", "--max-length"],
        ["solve", "1", "--model", "MODEL", "--n-best"],
        ["interpret", "roles", "--model", "MODEL", "--data", "STORE", "--out", "OUT", "--seed"],
        ["interpret", "roles", "--model", "MODEL", "--data", "STORE", "--out", "OUT", "--layer"],
        ["import-authors", "x", "--vocab", "y", "--out", "OUT", "--heads"],
    ],
)
def test_arguments_out_of_range_end_in_one_line(capsys, tmp_path, sums_store, untrained, arguments):
    places = {"STORE": str(sums_store), "MODEL": str(untrained), "OUT": str(tmp_path / "out")}
    for value in ("-100000", "1" + "0" * 23, "9" * 400, "9" * 5000, "nan"):
        with pytest.raises(SystemExit) as end:
            main([places.get(word, word) for word in arguments] + [value])
        captured = capsys.readouterr()
        assert (end.value.code, captured.out) == (2, "")
        assert captured.err.startswith("tpt: ")
        assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_largest_seeds_are_taken(capsys, sums_store):
    main(["data", "show", str(sums_store), "--seed", str(2**64 - 1), "--json"])
    assert capsys.readouterr().out


def train(capsys, folder, store, *more):
    with pytest.raises(SystemExit) as end:
        main(["train", "--run", str(folder / "run"), "--data", str(store), *more])
    captured = capsys.readouterr()
    assert (end.value.code, captured.err.count("\n")) == (2, 1)
    return captured.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {n_positions: 1" + "0" * 30 + "}", "model.n_positions must be from 1 to"),
        ("model: {n_positions: " + "9" * 5000 + "}", "5000 digits"),
        ("model: {n_positions: 0x" + "f" * 9000 + "}", "digits"),
        ("model: {d_ff: 2000-99-99}", "is not YAML"),
        ("model: {dropout: 1e44}", "model.dropout must be 0 or more and below 1"),
        ("model: {dropout: 1" + "0" * 400 + "}", "model.dropout must be 0 or more and below 1"),
        ("model: " + "[" * 1000, "is not YAML"),
    ],
)
def test_numbers_of_a_file_end_in_one_line(capsys, tmp_path, sums_store, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    assert message in train(capsys, tmp_path, sums_store, "--config", str(tmp_path / "mine.yaml"))
    assert not (tmp_path / "run").exists()


def test_a_batch_beyond_the_memory_ends_in_one_line(capsys, tmp_path, sums_store):
    said = train(
        capsys, tmp_path, sums_store, "--config=tp-transformer-tiny", "--data.batch_size=1000000000"
    )
    assert "batches of 1,000,000,000 take at least" in said
    assert not (tmp_path / "run").exists()


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

    monkeypatch.setattr("tp_transformer.show.presets.models_table", exhausted)
    with pytest.raises(SystemExit) as end:
        main(["models"])
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert err.startswith("tpt: there is not enough memory for this")
    assert err.count("\n") == 1
