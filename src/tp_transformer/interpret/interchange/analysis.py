"""Roles of two numbers exchanged: whether the answer follows them.

In (a/b)/(c/d), the roles that the heads of a layer have at two of the four numbers are exchanged;
everything else, fillers included, is unchanged. If a role alone encodes the place of a number in
the structure, the model now answers as if the two numbers were exchanged. It need not: the state to
which bound vectors are added also encodes the position, and so do other layers. Roles are therefore
exchanged in one layer, and in all layers at once; then the roles of a layer are computed from
states that exchanges in lower layers have changed.

There are two controls. The roles of the same two numbers are moved as far in random directions,
which distinguishes an exchange from a disturbance. And the answers are compared with those to other
exchanges of numbers, which distinguishes an answer that follows the exchange from one that a
disturbed model is likely to give anyway.

Only exchanges that change the value count, and only questions that the model answers before and
after each exchange of the numbers themselves.

There are four such exchanges and three draws of directions. If it does not matter which roles are
exchanged, one in four of all answers that belong to an exchange belongs to this one; if it does not
matter whether roles are exchanged or moved, one in four of the exchanged answers comes after an
exchange. Both are tested by the binomial distribution. (Answers to the same question are similar,
so counts vary less than binomial ones, and the test is conservative.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tp_transformer.foundation.progress import track
from tp_transformer.foundation.statistics import holm, wilson
from tp_transformer.interpret.core import operations
from tp_transformer.interpret.core.nested import NestedFraction, read_fractions
from tp_transformer.interpret.core.operations import RoleOperation, as_far, swapped
from tp_transformer.interpret.core.options import head_indices, layer_index
from tp_transformer.interpret.core.record import checked_model
from tp_transformer.interpret.core.result import Context
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.interchange.options import InterchangeOptions
from tp_transformer.interpret.interchange.result import (
    CONTROL_DRAWS,
    EXCHANGES,
    AnswerCounts,
    InterchangeResult,
    LayerInterchange,
    RoleExchange,
    ShareTest,
)
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer


def analyse(
    model: AnyModel, sample: Sample, options: InterchangeOptions, seed: int
) -> InterchangeResult:
    """Exchange roles in one layer and in all layers."""
    model = checked_model(model, options)
    heads = head_indices(options.head, model.config.n_heads)
    layer = layer_index(options.layer, model.config.n_layers)
    return InterchangeResult(
        context=Context.of(model, sample, seed),
        interchanges=interchanges(model, read_fractions(sample), layer, heads, seed),
    )


def interchanges(
    model: Transformer, asked: Sequence[NestedFraction], layer: int, heads: Sequence[int], seed: int
) -> tuple[LayerInterchange, ...]:
    """Exchange the roles of some heads in a layer and in all layers; adjust all p-values."""
    known = _known(model, asked)
    all_layers = tuple(range(model.config.n_layers))
    found = [
        _interchange(model, known, layers, heads, seed)
        for layers in dict.fromkeys([(layer,), all_layers])
    ]
    tests = [test for item in found for test in (item.against_moved, item.against_others)]
    adjusted = [
        replace(test, p_value=p_value)
        for test, p_value in zip(tests, holm([test.p_value for test in tests]), strict=True)
    ]
    return tuple(
        replace(item, against_moved=moved, against_others=others)
        for item, moved, others in zip(found, adjusted[::2], adjusted[1::2], strict=True)
    )


def _known(model: Transformer, asked: Sequence[NestedFraction]) -> list[NestedFraction]:
    """Return the questions that are answered before and after each exchange of their numbers."""
    variants = [asked, *([fraction.exchanged(pair) for fraction in asked] for pair in EXCHANGES)]
    is_right = [
        [fraction.answer == answer for fraction, answer in zip(own, answers, strict=True)]
        for own, answers in (
            (own, model.solve([fraction.question for fraction in own]))
            for own in track("asking with numbers exchanged", variants)
        )
    ]
    return [fraction for fraction, *right in zip(asked, *is_right, strict=True) if all(right)]


def _interchange(
    model: Transformer,
    known: Sequence[NestedFraction],
    layers: tuple[int, ...],
    heads: Sequence[int],
    seed: int,
) -> LayerInterchange:
    """Count the answers for each pair of numbers; p-values are not adjusted yet."""

    def count(operation: RoleOperation) -> dict[str, int]:
        return _count(model, known, layers, heads, operation)

    exchanges = []
    for pair in track("exchanging roles", EXCHANGES):
        swap = swapped(seed, [[fraction.position(letter) for letter in pair] for fraction in known])
        draws = [count(as_far(seed + draw, swap)) for draw in range(CONTROL_DRAWS)]
        exchanges.append(
            RoleExchange(
                letters=pair,
                n=len(known),
                swapped=_answers([count(swap)], pair, len(known)),
                moved=_answers(draws, pair, len(known)),
            )
        )
    exchanged = sum(exchange.swapped.exchanged for exchange in exchanges)
    moved = sum(exchange.moved.exchanged for exchange in exchanges)
    others = sum(exchange.swapped.otherwise for exchange in exchanges)
    return LayerInterchange(
        layers=layers,
        exchanges=tuple(exchanges),
        against_moved=ShareTest.of(exchanged, moved, CONTROL_DRAWS),
        against_others=ShareTest.of(exchanged, others, len(EXCHANGES) - 1),
    )


def _count(
    model: Transformer,
    asked: Sequence[NestedFraction],
    layers: tuple[int, ...],
    heads: Sequence[int],
    operation: RoleOperation,
) -> dict[str, int]:
    """Count the answers that are right after each exchange of numbers, and after none ("")."""
    questions = [fraction.question for fraction in asked]
    answers = (
        operations.solve(model, questions, layers=layers, heads=heads, operation=operation)
        if asked
        else []
    )
    return {
        pair: sum(
            (fraction.exchanged(pair) if pair else fraction).answer == answer
            for fraction, answer in zip(asked, answers, strict=True)
        )
        for pair in ("", *EXCHANGES)
    }


def _answers(draws: Sequence[Mapping[str, int]], pair: str, n: int) -> AnswerCounts:
    """Add up all draws; the interval counts each of the n questions once."""
    exchanged = sum(counts[pair] for counts in draws)
    return AnswerCounts(
        exchanged=exchanged,
        exchanged_interval=wilson(round(exchanged / len(draws)), n) if n else None,
        otherwise=sum(counts[other] for counts in draws for other in EXCHANGES if other != pair),
        kept=sum(counts[""] for counts in draws),
    )
