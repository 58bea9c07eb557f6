import pytest

from runs import config, make_store
from tp_transformer import train


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("data") / "store")


@pytest.fixture(scope="session")
def undisturbed(store, tmp_path_factory):
    """A run from beginning to end in this process: what disturbed ones must come to."""
    run = tmp_path_factory.mktemp("runs") / "undisturbed"
    train(config(training__ema=0.9), store, run, quiet=True)
    return run
