"""What the experiments show, on a small scale; docs/experiments.md has the rest."""

import attention_search
import numpy as np
import pytest
from degree import ATTENTION, HELD, ROLES, SCALE, degree, degrees

from planted import nested
from tp_transformer.expressions import parse
from tp_transformer.interpret.core.structure import RELATIONS

TP, PLAIN = "tp-transformer-tiny", "transformer-tiny"


@pytest.mark.parametrize("expected", [0, 1, 2, 5, 16])
def test_the_degree_of_a_known_polynomial(expected):
    x = np.linspace(-1, 1, 19)
    rng = np.random.default_rng(expected)
    curves = [np.polynomial.Polynomial(rng.normal(size=1 + n))(x) for n in (0, expected)]
    assert degree(np.stack(curves, axis=1)) == expected


def test_what_is_no_polynomial_has_no_degree():
    assert degree(np.abs(np.linspace(-1, 1, 19))[:, None]) is None


@pytest.mark.parametrize("seed", range(2))
def test_the_degree_doubles_with_every_layer_of_tp_attention(seed):
    """Section 2.1: each layer's output is quadratic in its input, plain attention's is linear."""
    assert degrees(TP, seed) == [2, 4, 8, 16]
    assert degrees(PLAIN, seed) == [1, 1, 1, 1]
    assert degrees(TP, seed, (*HELD, ROLES)) == [1, 1, 1, 1]  # it is the roles that raise it


@pytest.mark.parametrize("held", [(), (ATTENTION,), (SCALE,)])
def test_a_softmax_and_a_layer_norm_are_no_polynomials(held):
    assert set(degrees(PLAIN, 0, held)) == {None}


def test_the_error_rates_of_the_attention_search(monkeypatch, capsys):
    questions = [parse(question) for question in nested(24).questions]
    monkeypatch.setattr(attention_search, "questions", lambda count, seed: questions)
    monkeypatch.setattr("sys.argv", ["attention_search.py", "--searches", "1"])
    attention_search.main()
    lines = capsys.readouterr().out.splitlines()
    n_blind, n_shares = len(attention_search.BLIND), len(attention_search.SHARES)
    assert len(lines) == n_blind + len(RELATIONS) * n_shares
    assert all(f": 0 of {len(RELATIONS)}, " in line for line in lines[:n_blind])
    found = dict(line.split(": ") for line in lines[n_blind:])
    assert found["number to the other argument, 80%"].startswith("1 of 1")
