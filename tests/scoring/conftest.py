import pytest


@pytest.fixture(scope="session")
def store(sums_store):
    return sums_store


@pytest.fixture(scope="session")
def trained(half_trained):
    return half_trained
