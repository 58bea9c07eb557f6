"""Fixtures of the tests of compiled operations."""

from contextlib import contextmanager

import pytest

from tp_transformer.ops import library


@pytest.fixture
def called(monkeypatch):
    """The names of the kernels that are called."""
    names = []
    call = library.call
    monkeypatch.setattr(
        library, "call", lambda name, *rest: (names.append(name), call(name, *rest))
    )
    return names


@pytest.fixture
def without_kernels(monkeypatch):
    """A context in which the kernels are not compiled."""

    @contextmanager
    def context():
        with monkeypatch.context() as without:
            without.setattr(library, "load", lambda: None)
            yield

    return context
