import gc

import pytest

from tp_transformer.foundation.allocator import without_collection


def test_collection_is_paused_and_resumed_also_after_an_error():
    states = []

    def fail():
        with without_collection():
            states.append(gc.isenabled())
            raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert [*states, gc.isenabled()] == [False, True]


def test_collection_that_the_caller_has_disabled_stays_disabled():
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
