"""Roles of two numbers exchanged: whether the answer follows them, and which ones are alike.

In (a/b)/(c/d), the roles that the heads of a layer have at two of the four numbers are exchanged;
everything else, fillers included, is unchanged. If a role alone encodes the place of a number in
the structure, the model now answers as if the two numbers were exchanged. It need not: the state to
which bound vectors are added also encodes the position, and so do other layers. Roles are therefore
exchanged in each layer, and in all layers at once; then the roles of a layer are computed from
states that exchanges in lower layers have changed.

**Whether the answer follows.** There are two controls. The roles of the same two numbers are moved
as far in random directions, which distinguishes an exchange from a disturbance. And the answers are
compared with those to other exchanges of numbers, which distinguishes an answer that follows the
exchange from one that a disturbed model is likely to give anyway. Only the four exchanges that
change the value count here. There are three draws of directions. If it does not matter which roles
are exchanged, one in four of all answers that belong to an exchange belongs to this one; if it does
not matter whether roles are exchanged or moved, one in four of the exchanged answers comes after an
exchange. Both are tested by the binomial distribution. (Answers to the same question are similar,
so counts vary less than binomial ones, and the test is conservative.)

**Whether sides are reversed** in the denominator c/d, as section 5.1 observes. If roles encode the
reversed side, c has the role of b (both are denominators) and d that of a; if they encode the
unreversed side, c has the role of a and d that of b. The role of a or b, which both labels agree
on, is copied to c or d. Where the two numbers have the same role, the answer should be kept, and
where not, it should become the one that is right if the number were on the other side. If roles
encode the place of each number, no copy keeps the answer. The result is the share of answers that
reversed copies keep, minus the share that unreversed copies keep. Control: roles moved as far in
random directions.

Only questions count that the model answers before and after each of the four exchanges of the
numbers themselves.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tp_transformer.foundation.progress import track
from tp_transformer.foundation.statistics import holm, resample, wilson
from tp_transformer.interpret.core import operations
from tp_transformer.interpret.core.arrays import Floats
from tp_transformer.interpret.core.nested import NestedFraction, read_fractions
from tp_transformer.interpret.core.operations import RoleOperation, as_far, at, swapped
from tp_transformer.interpret.core.options import head_indices, layer_index
from tp_transformer.interpret.core.record import checked_model
from tp_transformer.interpret.core.result import Context
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.interchange.options import InterchangeOptions
from tp_transformer.interpret.interchange.result import (
    CONTROL_DRAWS,
    EXCHANGES,
    REVERSED_COPIES,
    UNREVERSED_COPIES,
    AnswerCounts,
    CopiedRoles,
    InterchangeResult,
    LayerInterchange,
    RoleExchange,
    ShareTest,
    SideContrast,
)
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer

Answers = tuple[list[list[str]], list[list[str]]]  # after an operation; in each draw of its control


def analyse(
    model: AnyModel, sample: Sample, options: InterchangeOptions, seed: int
) -> InterchangeResult:
    """Exchange roles in one layer, or in each, and in all layers at once."""
    model = checked_model(model, options)
    n_layers = model.config.n_layers
    heads = head_indices(options.head, model.config.n_heads)
    layers = range(n_layers) if options.layer is None else [layer_index(options.layer, n_layers)]
    return InterchangeResult(
        context=Context.of(model, sample, seed),
        interchanges=interchanges(model, read_fractions(sample), layers, heads, seed),
    )


def interchanges(
    model: Transformer,
    asked: Sequence[NestedFraction],
    layers: Iterable[int],
    heads: Sequence[int],
    seed: int,
) -> tuple[LayerInterchange, ...]:
    """Exchange the roles of some heads in each layer and in all at once; adjust all p-values."""
    known = _known(model, asked)
    all_layers = tuple(range(model.config.n_layers))
    found = [
        _interchange(model, known, chosen, heads, seed)
        for chosen in dict.fromkeys([*((layer,) for layer in layers), all_layers])
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

    def answers(operation: RoleOperation) -> list[str]:
        questions = [fraction.question for fraction in known]
        return (
            operations.solve(model, questions, layers=layers, heads=heads, operation=operation)
            if known
            else []
        )

    def answers_after(operation: RoleOperation) -> Answers:
        """Return the answers after an operation, and in each draw of its control."""
        far = [answers(as_far(seed + draw, operation)) for draw in range(CONTROL_DRAWS)]
        return [answers(operation)], far

    def swap(pair: str) -> RoleOperation:
        return swapped(seed, [[fraction.position(letter) for letter in pair] for fraction in known])

    exchanges = []
    for pair in track("exchanging roles", EXCHANGES):
        swaps, moves = answers_after(swap(pair))
        exchanges.append(
            RoleExchange(
                letters=pair,
                n=len(known),
                swapped=_counts(known, swaps, pair),
                moved=_counts(known, moves, pair),
            )
        )
    copied = {
        pair: answers_after(at([[fraction.position(pair[1])] for fraction in known], swap(pair)))
        for pair in track("copying roles", (*REVERSED_COPIES, *UNREVERSED_COPIES))
    }
    exchanged = sum(exchange.swapped.exchanged for exchange in exchanges)
    moved = sum(exchange.moved.exchanged for exchange in exchanges)
    others = sum(exchange.swapped.otherwise for exchange in exchanges)
    return LayerInterchange(
        layers=layers,
        exchanges=tuple(exchanges),
        against_moved=ShareTest.of(exchanged, moved, CONTROL_DRAWS),
        against_others=ShareTest.of(exchanged, others, len(EXCHANGES) - 1),
        sides=_contrast(known, copied) if known else None,
    )


def _contrast(known: Sequence[NestedFraction], copied: Mapping[str, Answers]) -> SideContrast:
    """Compare reversed with unreversed copies."""
    right = {pair: [fraction.answer for fraction in known] for pair in copied}
    flipped = {pair: [fraction.flipped(pair[1]) for fraction in known] for pair in copied}

    def shares(pairs: Sequence[str], wanted: Mapping[str, list[str]]) -> Floats:
        """Return the share of wanted answers: (copied or moved, question)."""
        found = [
            [np.equal(draws, wanted[pair]).mean(axis=0) for draws in copied[pair]] for pair in pairs
        ]
        return np.mean(found, axis=0, dtype=np.float64)

    def copies(pairs: Sequence[str]) -> CopiedRoles:
        kept, moved_kept = shares(pairs, right).mean(axis=1).tolist()
        gone, moved_gone = shares(pairs, flipped).mean(axis=1).tolist()
        return CopiedRoles(kept=kept, flipped=gone, moved_kept=moved_kept, moved_flipped=moved_gone)

    difference = shares(REVERSED_COPIES, right)[0] - shares(UNREVERSED_COPIES, right)[0]
    n = len(known)
    return SideContrast(
        reversed=copies(REVERSED_COPIES),
        unreversed=copies(UNREVERSED_COPIES),
        difference=float(difference.mean()),
        interval=resample(n, lambda counts: counts @ difference / n),
    )


def _counts(
    known: Sequence[NestedFraction], draws: Sequence[Sequence[str]], pair: str
) -> AnswerCounts:
    """Count the answers of all draws; the interval counts each of the questions once."""
    counts = Counter(
        letters
        for answers in draws
        for fraction, answer in zip(known, answers, strict=True)
        for letters in ("", *EXCHANGES)
        if (fraction.exchanged(letters) if letters else fraction).answer == answer
    )
    n = len(known)
    return AnswerCounts(
        exchanged=counts[pair],
        exchanged_interval=wilson(round(counts[pair] / len(draws)), n) if n else None,
        otherwise=sum(counts[other] for other in EXCHANGES if other != pair),
        kept=counts[""],
    )
