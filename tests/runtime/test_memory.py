import gc

import pytest

from tp_transformer.runtime.memory import without_collection


@pytest.mark.parametrize("was_enabled", [True, False])
def test_collection_is_paused_and_resumed_as_it_was(was_enabled):
    states = []

    def fail():
        with without_collection():
            states.append(gc.isenabled())
            raise ImportError

    gc.enable() if was_enabled else gc.disable()
    try:
        with pytest.raises(ImportError):
            fail()
        assert [*states, gc.isenabled()] == [False, was_enabled]
    finally:
        gc.enable()


def test_later_searches_do_not_visit_the_objects_that_imports_have_created():
    with without_collection():
        imported = []
    created_later = []
    visited = [id(each) for each in gc.get_objects()]
    assert id(imported) not in visited
    assert id(created_later) in visited
