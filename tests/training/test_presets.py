"""Every preset is the settings of a whole run; those of Table 1 are their papers'."""

import pytest

import tp_transformer as tpt
from tp_transformer import settings
from tp_transformer.training.config import run_config, section_kinds
from tp_transformer.training.optim import OptimConfig

SCHLAG = ("tp-transformer", "tp-transformer-b", "tp-transformer-c", "transformer")
SAXTON = ("transformer-saxton", "lstm-saxton")
TASKS = ("lookup", "quotients", "recall", "scan")
OURS = ("tp-transformer-small", "transformer-small", "tp-transformer-tiny", "transformer-tiny")


def resolved(name):
    return run_config(settings.run_values(name, {}, section_kinds()))


def test_every_preset_is_covered_here():
    assert sorted(SCHLAG + SAXTON + OURS + TASKS) == tpt.preset_names()


@pytest.mark.parametrize("name", SCHLAG)
def test_schlag_et_al(name):
    run = resolved(name)
    assert run.optim == OptimConfig(
        optimizer="adam",
        learning_rate=1e-4,
        betas=(0.9, 0.995),
        eps=1e-8,
        weight_decay=0.0,
        clip_norm=0.1,
        clip_value=None,
        schedule="constant",
        warmup=0,
    )
    assert (run.data.batch_size, run.training.steps) == (1024, 1_000_000)


@pytest.mark.parametrize("name", SAXTON)
def test_saxton_et_al(name):
    run = resolved(name)
    assert run.optim == OptimConfig(
        optimizer="adam",
        learning_rate=6e-4,
        betas=(0.9, 0.995),
        eps=1e-9,
        weight_decay=0.0,
        clip_norm=None,
        clip_value=0.1,
        schedule="constant",
        warmup=0,
    )
    assert (run.data.batch_size, run.training.steps) == (1024, 500_000)


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
