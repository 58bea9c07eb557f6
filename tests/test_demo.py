import re

from rich.console import Console

from tp_transformer.demo import demo, fit_a_layer, swap_distance
from tp_transformer.model.binding import BINDINGS


def test_the_demo_runs_and_says_what_it_computed():
    console = Console(record=True, width=80, quiet=False, file=None)
    with console.capture() as capture:
        demo(console)
    text = capture.get()
    assert "49,178,112" in text
    for binding in BINDINGS:
        assert binding in text
    assert "encoder.0.self_attention.role is (1, 4, 16, 16)" in text
    moved = re.search(r"it moves encoder.1.output by (\d+)%", text)
    assert moved
    assert int(moved[1]) > 0
    assert max(map(len, text.splitlines())) <= 80


def test_only_without_roles_do_exchanged_fillers_collide():
    assert swap_distance("none") < 1e-6
    for binding in set(BINDINGS) - {"none"}:
        assert swap_distance(binding) > 0.5


def test_a_layer_learns():
    before, after = fit_a_layer()
    assert after < 0.7 * before
