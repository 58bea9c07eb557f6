"""Fixtures of the tests of models."""

import pytest

from tp_transformer.foundation import native


@pytest.fixture
def called(monkeypatch):
    """The names of the kernels that are called."""
    names = []
    call = native.call
    monkeypatch.setattr(native, "call", lambda name, *rest: (names.append(name), call(name, *rest)))
    return names
