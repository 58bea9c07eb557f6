"""Fixtures for all tests.

The process that distributes the tests imports this file too, so torch is imported by fixtures.
"""

import gc
import os
import random

import pytest
from filelock import FileLock
from hypothesis import settings

# How long an example takes depends on what else the machine does.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

# Searching all that is imported for cycles without a use took 9% of the time of a measured run.
gc.set_threshold(50_000)

# No power fails during a test; waiting for the disk would take longer than most of them.
os.fsync = lambda _descriptor: None


@pytest.fixture(scope="session", autouse=True)
def _quick():
    """The tensors of tests are tiny: a second thread would only wait for the first."""
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # imported modules stay


@pytest.fixture(autouse=True)
def _fixed_seed():
    import torch

    torch.manual_seed(0)


FIELDS = {"d_model": 32, "d_ff": 64, "n_heads": 4, "n_layers": 1}


def sums(chance, largest, count):
    """Additions with several symbols in the answer, which a small model half learns."""
    pairs = [(chance.randrange(largest), chance.randrange(largest)) for _ in range(count)]
    return [(f"What is {a} + {b}?", str(a + b)) for a, b in pairs]


def digits(chance, count):
    """Last digits, which it learns nearly all."""
    numbers = [chance.randrange(10 ** chance.randrange(1, 6)) for _ in range(count)]
    return [(f"Last digit of {number}?", str(number % 10)) for number in numbers]


@pytest.fixture(scope="session")
def sums_store(tmp_path_factory):
    """Additions and last digits, as modules of a store."""
    from corpora import make_store

    chance = random.Random(0)
    folder = tmp_path_factory.mktemp("sums") / "store"
    return make_store(
        folder,
        {
            ("train", "arithmetic__add_or_sub", "easy"): sums(chance, 10, 600),
            ("train", "arithmetic__add_or_sub", "hard"): sums(chance, 30, 1200),
            ("train", "numbers__place_value", "easy"): digits(chance, 1200),
            ("interpolate", "arithmetic__add_or_sub", None): sums(chance, 30, 700),
            ("interpolate", "numbers__place_value", None): digits(chance, 500),
            ("extrapolate", "arithmetic__add_or_sub_big", None): sums(chance, 120, 300),
        },
        rows_per_batch=256,
    )


@pytest.fixture(scope="session")
def half_trained(sums_store, tmp_path_factory):
    """The folder of a model that answers some of the questions and not others.

    One process trains it for all.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "half-trained" / "model"
    with FileLock(shared / "half-trained.lock"):
        if not folder.exists():
            _half_train(sums_store).save(folder)
    return folder


def _half_train(store):
    import torch

    import tp_transformer as tpt
    from tp_transformer.data.store import open_store
    from tp_transformer.model.batch import Batch

    torch.manual_seed(0)
    model = tpt.build("tp-transformer-tiny", **FIELDS)
    split = open_store(store)["train"]
    rng = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(400):
        rows = torch.randint(len(split), (64,), generator=rng).numpy()
        batch = Batch.from_ragged(*split.tokens(rows, model.vocabulary), model.vocabulary.pad)
        optimizer.zero_grad()
        model.loss(batch).mean.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model
