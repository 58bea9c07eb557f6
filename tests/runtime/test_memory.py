import gc

import pytest

from tp_transformer.runtime.memory import without_collection


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


def test_later_searches_do_not_visit_the_objects_that_imports_have_created():
    with without_collection():
        imported = []
    created_later = []
    visited = [id(each) for each in gc.get_objects()]
    assert id(imported) not in visited
    assert id(created_later) in visited
