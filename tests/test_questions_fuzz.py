"""Questions and answers with random damages: read, or refused in the package's own words."""

import io
import random
from contextlib import suppress

import pytest
import torch

import tp_transformer as tpt
from fuzzing import mutate_bytes, tolerated, trials
from tp_transformer.interpret.core.relations import RELATIONS
from tp_transformer.interpret.core.structure import PLACES, labels
from tp_transformer.model.solver import lines, solve_each
from tp_transformer.scoring.diagnose import KINDS, Diagnosis, UnreadableError
from tp_transformer.scoring.expressions import nodes, parse, parse_answer

TEXTS = (
    "What is the value of (((-24)/(-6))/(2/(-3)))/(12/8)?",
    "Calculate -841880142.544 + 411127.",
    "Evaluate (1 - (2 - -3)*4)/(5 + 6) - 7.",
    "What is 5 take away 0.25?",
    "Work out 5 divided by -3.",
    "Let p(x) = -x**2 + 3*x. Let c be p(2). Is c prime?",
    "((((((((((0))))))))))",
)
ANSWERS = ("-2*sqrt(3) + 4*x**3*y/(1 - z)", "-1, 2/3, 0.25", "17", "x**2 - 1", "(x + 1)*(x - 1)")
COUNTS = [400, pytest.param(40_000, marks=pytest.mark.slow)]


def damaged(chance: random.Random, texts: tuple[str, ...] = TEXTS) -> str:
    data = chance.choice(texts).encode()
    if chance.random() < 0.3:
        data = chance.choice((data, b"(", b"-", b"/", b"9", b"**9")) * 2 ** chance.randrange(12)
    return mutate_bytes(data, chance).decode("utf-8", chance.choice(("surrogateescape", "replace")))


@pytest.mark.parametrize("count", COUNTS)
def test_expressions_and_their_structure(count):
    n_parsed = 0
    for name, chance in trials(count):
        with tolerated(name):
            expression = parse(damaged(chance))
            if expression is None:
                continue
            n_parsed += 1
            assert expression.value == expression.tree.value
            assert len(list(nodes(expression.tree))) <= len(expression.question)
            labels(expression)
            for positions in PLACES.values():
                positions(expression)
            for relation in RELATIONS.values():
                relation(expression)
    assert n_parsed > count // 20  # else nothing has been tried


@pytest.mark.parametrize("count", COUNTS)
def test_answers_that_are_diagnosed(count, monkeypatch):
    """Sympy has a process and a time limit of its own, and is not what is tested here."""
    monkeypatch.setattr(Diagnosis, "_prove", lambda *_: True)
    n_parsed = 0
    with Diagnosis() as diagnosis:
        for name, chance in trials(count):
            answer, predicted = damaged(chance, ANSWERS), damaged(chance, ANSWERS)
            with tolerated(name):
                assert diagnosis.kind(answer, predicted) in KINDS
                with suppress(UnreadableError):
                    n_parsed += bool(parse_answer(answer))
    assert n_parsed > count // 20


@pytest.mark.parametrize("count", [40, pytest.param(4000, marks=pytest.mark.slow)])
def test_lines_that_are_to_be_solved(count):
    """Every line has an answer or a reason, in the order of the lines."""
    torch.manual_seed(0)
    model = tpt.build("tp-transformer-tiny", d_model=16, d_ff=16, n_layers=1).eval()
    for name, chance in trials(count):
        data = mutate_bytes("\r\n".join(chance.choices(TEXTS, k=3)).encode(), chance)
        with tolerated(name):
            asked = list(solve_each(model, lines(io.BytesIO(data)), noun="line", max_length=3))
            for one in asked:
                assert bool(one.answers) != bool(one.error)
                one.as_json().encode()
                assert "\n" not in (one.error or "")
            whole = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
            assert len(asked) == len(whole) - (not whole[-1])
