"""Every preset is the settings of a whole run; those of Table 1 are their papers'; from Python."""

import pytest

import tp_transformer as tpt
from corpora import make_store, pairs
from tp_transformer import settings
from tp_transformer.training.config import run_config, section_kinds
from tp_transformer.training.optim import OptimConfig

SCHLAG = ("tp-transformer", "tp-transformer-b", "tp-transformer-c", "transformer")
SAXTON = ("transformer-saxton", "lstm-saxton")
TASKS = ("lookup", "quotients", "recall", "scan")
OURS = ("tp-transformer-small", "transformer-small", "tp-transformer-tiny", "transformer-tiny")
SMALL = {
    "model": {"d_model": 8, "d_ff": 8, "n_heads": 2, "n_layers": 1},
    "data": {"batch_size": 4, "modules": ("numbers__gcd",)},
    "training": {"steps": 2, "log_every": 1},
}


def resolved(name):
    return run_config(settings.run_values(name, {}, section_kinds()))


def test_every_preset_is_covered_here():
    assert sorted(SCHLAG + SAXTON + OURS + TASKS) == tpt.preset_names()


SCHLAG_ADAM = {"learning_rate": 1e-4, "eps": 1e-8, "clip_norm": 0.1, "clip_value": None}
SAXTON_ADAM = {"learning_rate": 6e-4, "eps": 1e-9, "clip_norm": None, "clip_value": 0.1}


@pytest.mark.parametrize(
    ("name", "adam", "steps"),
    [(name, SCHLAG_ADAM, 1_000_000) for name in SCHLAG]
    + [(name, SAXTON_ADAM, 500_000) for name in SAXTON],
)
def test_the_optimizers_of_the_papers(name, adam, steps):
    run = resolved(name)
    plain = {"optimizer": "adam", "weight_decay": 0.0, "schedule": "constant", "warmup": 0}
    assert run.optim == OptimConfig(betas=(0.9, 0.995), **plain, **adam)
    assert (run.data.batch_size, run.training.steps) == (1024, steps)


@pytest.mark.parametrize("name", SCHLAG + SAXTON)
def test_the_papers_train_plainly_on_everything(name):
    run = resolved(name)
    assert run.data.modules == ("*",)
    assert run.data.weights is None
    assert (run.training.epochs, run.training.budget, run.training.patience) == (None, None, None)
    assert (run.training.label_smoothing, run.training.ema) == (0.0, None)
    assert getattr(run.model, "dropout", 0.0) == 0.0


@pytest.mark.parametrize("size", ["small", "tiny"])
def test_the_two_models_of_a_size_are_trained_alike(size):
    """So that what they reach can be compared."""
    ours, plain = resolved(f"tp-transformer-{size}"), resolved(f"transformer-{size}")
    for section in ("data", "optim", "training", "validation"):
        assert getattr(ours, section) == getattr(plain, section)


@pytest.fixture
def store(tmp_path):
    rows = {("train", "numbers__gcd", "easy"): pairs("x", 60)}
    return tpt.data.open(make_store(tmp_path / "math", rows))


def test_settings_of_a_preset_are_overridden():
    preset = tpt.RunConfig.of("tp-transformer-tiny")
    config = tpt.RunConfig.of("tp-transformer-tiny", **SMALL)
    assert config.training.steps == 2
    assert config.model.d_model == 8
    assert config.data.modules == ("numbers__gcd",)
    assert (config.optim, config.validation) == (preset.optim, preset.validation)
    assert config.model.binding == preset.model.binding
    assert preset.model.d_model != 8


def test_a_config_trains_on_a_store_and_resumes(store, tmp_path):
    config = tpt.RunConfig.of("tp-transformer-tiny", **SMALL)
    outcome = tpt.train(config, store, tmp_path / "run", quiet=True)
    assert outcome.step == 2
    assert tpt.load(outcome.run).config.d_model == 8
    assert tpt.train(config, store.path, tmp_path / "run", quiet=True).was_finished


def test_a_file_trains_by_its_path(store, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(
        "model: {d_model: 8, d_ff: 8, n_heads: 2, n_layers: 1}\n"
        "data: {batch_size: 4}\ntraining: {steps: 2}\n",
        "utf-8",
    )
    for source in (file, str(file)):
        outcome = tpt.train(source, store, tmp_path / "run", quiet=True)
        assert outcome.step == 2
