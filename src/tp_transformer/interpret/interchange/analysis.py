"""Roles of two numbers exchanged: whether the answer follows them, and which ones are alike.

In (a/b)/(c/d), the roles that the heads of a layer have at two of the four numbers are replaced;
everything else, fillers included, is unchanged. A role may encode the place of a number in the
structure, and it may encode the number itself. Each role therefore comes from the question in which
the two numbers are exchanged, where the same number has the other place, and the other number the
same place:

- *places exchanged*: each number gets the role that it has at the other place. If roles encode
  places, the model now answers as if the two numbers were exchanged. It need not: the state to
  which bound vectors are added also encodes the position, and so do other layers.
- *numbers exchanged*: each place gets the role that it has with the other number. If the model now
  answers as if the two numbers were exchanged, its roles encode numbers.

Exchanging the two roles of one question would do both at once, and could not distinguish them.
Roles are replaced in each layer, and in all layers at once.

**Whether the answer follows places.** There are two controls. The roles of the same two numbers are
moved as far in random directions, which distinguishes an exchange from a disturbance. And the
answers are compared with those to other exchanges of numbers, which distinguishes an answer that
follows the exchange from one that a disturbed model is likely to give anyway. Only the four
exchanges that change the value count here. There are three draws of directions. If it does not
matter which roles are exchanged, one in four of all answers that belong to an exchange belongs to
this one; if it does not matter whether roles are exchanged or moved, one in four of the exchanged
answers comes after an exchange. Both are tested by the binomial distribution. (Answers to the same
question are similar, so counts vary less than binomial ones, and the test is conservative.)

**Whether sides are reversed** in the denominator c/d, as section 5.1 observes. If roles encode the
reversed side, c has the role that it has at the place of b (both are denominators), and d that at
the place of a; if they encode the unreversed side, c has the role that it has at the place of a,
and d that at the place of b. The role that c or d has at the place of a or b, where both labels
agree, is copied to it. Where the two places have the same role, the answer should be kept, and
where not, it should be flipped: the one that is right if the number were on the other side. If
roles encode each place, no copy keeps the answer. Copies are not equally far, and a role that is
moved farther disturbs more, so that shares count only beyond those after the same roles are moved
as far in random directions. Roles act as reversed sides if reversed copies keep more answers than
unreversed ones, and unreversed ones flip more.

Only questions count that the model answers before and after each of the four exchanges of the
numbers themselves (the other two exchanges keep the value), and whose four exchanges have different
answers. Questions with the same four digits are alike, so intervals resample sets of digits.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tp_transformer.foundation.progress import track
from tp_transformer.foundation.statistics import CONFIDENCE, holm, resample, wilson
from tp_transformer.interpret.core import operations
from tp_transformer.interpret.core.arrays import Floats
from tp_transformer.interpret.core.nested import (
    MOST_FRACTIONS,
    NestedFraction,
    drawn_sample,
    nested_fractions,
    nested_sample,
    read_fractions,
)
from tp_transformer.interpret.core.operations import (
    RoleOperation,
    as_far,
    moved_from,
    role_of,
)
from tp_transformer.interpret.core.options import head_indices, layer_index
from tp_transformer.interpret.core.record import Activations, checked_model, record
from tp_transformer.interpret.core.result import Context
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.interchange.options import InterchangeOptions
from tp_transformer.interpret.interchange.result import (
    CONTROL_DRAWS,
    EXCHANGES,
    REVERSED_COPIES,
    UNREVERSED_COPIES,
    AnswerCounts,
    Contrast,
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
Answered = Mapping[str, list[str]]  # by pair of numbers: the answer to each question


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
    choices = dict.fromkeys([*((layer,) for layer in layers), all_layers])
    confidence = 1 - (1 - CONFIDENCE) / len(choices)  # Bonferroni
    found = [_interchange(model, known, chosen, heads, seed, confidence) for chosen in choices]
    tests = [test for item in found for test in (item.against_moved, item.against_others)]
    adjusted = [
        replace(test, p_value=p_value)
        for test, p_value in zip(tests, holm([test.p_value for test in tests]), strict=True)
    ]
    return tuple(
        replace(item, against_moved=moved, against_others=others)
        for item, moved, others in zip(found, adjusted[::2], adjusted[1::2], strict=True)
    )


def exchangeable_sample(model: Transformer, count: int, seed: int) -> Sample:
    """Draw nested fractions that a model answers before and after each exchange of two numbers.

    If it answers no such fraction, they are any.
    """
    known = _known(model, nested_fractions(MOST_FRACTIONS, seed))[:count]
    if not known:
        return drawn_sample(count, seed)
    found = f"all of {MOST_FRACTIONS:,} that it" if len(known) < count else "which it"
    return nested_sample(
        known,
        f"nested fractions of digits (seed {seed}), {found} answers before and after each exchange "
        "of two numbers",
    )


def _known(model: Transformer, asked: Sequence[NestedFraction]) -> list[NestedFraction]:
    """Return the questions that are answered before and after each exchange of their numbers."""
    known = [fraction for fraction in asked if _are_different(fraction)]
    for pair in track("asking with numbers exchanged", ("", *EXCHANGES)):
        variants = [fraction.exchanged(pair) if pair else fraction for fraction in known]
        answers = model.solve([variant.question for variant in variants]) if known else []
        known = [
            fraction
            for fraction, variant, answer in zip(known, variants, answers, strict=True)
            if variant.answer == answer
        ]
    return known


def _are_different(fraction: NestedFraction) -> bool:
    """Whether each exchange has another answer: in (4/6)/(3/2), two of them are alike."""
    return len({fraction.exchanged(pair).answer for pair in EXCHANGES}) == len(EXCHANGES)


def _interchange(
    model: Transformer,
    known: Sequence[NestedFraction],
    layers: tuple[int, ...],
    heads: Sequence[int],
    seed: int,
    confidence: float,
) -> LayerInterchange:
    """Count the answers for each pair of numbers; p-values are not adjusted yet."""
    questions = [fraction.question for fraction in known]

    def answers(replacements: Mapping[int, RoleOperation]) -> list[str]:
        if not known:
            return []
        return operations.solve(model, questions, heads=heads, operations=replacements)

    def answers_after(replacements: Mapping[int, RoleOperation]) -> Answers:
        """Return the answers after an operation, and in each draw of its control."""
        far = [
            answers({layer: as_far(seed + draw, own) for layer, own in replacements.items()})
            for draw in range(CONTROL_DRAWS)
        ]
        return [answers(replacements)], far

    def replacements(pair: str, taken: str, given: str) -> dict[int, RoleOperation]:
        """Give roles of the question with a pair exchanged, at some letters, to other letters."""
        roles = _roles(model, [fraction.exchanged(pair) for fraction in known], layers, heads)
        sources = [[fraction.position(letter) for letter in taken] for fraction in known]
        targets = [[fraction.position(letter) for letter in given] for fraction in known]
        return {layer: moved_from(own, sources, targets) for layer, own in roles.items()}

    exchanges = []
    for pair in track("exchanging roles", EXCHANGES):
        places, moves = answers_after(replacements(pair, pair[::-1], pair))
        exchanges.append(
            RoleExchange(
                letters=pair,
                n=len(known),
                places=_counts(known, places, pair),
                moved=_counts(known, moves, pair),
                numbers=_counts(known, [answers(replacements(pair, pair, pair))], pair),
            )
        )
    copied = {
        pair: answers_after(replacements(pair, pair[0], pair[1]))
        for pair in track("copying roles", (*REVERSED_COPIES, *UNREVERSED_COPIES))
    }
    exchanged = sum(exchange.places.exchanged for exchange in exchanges)
    moved = sum(exchange.moved.exchanged for exchange in exchanges)
    others = sum(exchange.places.otherwise for exchange in exchanges)
    return LayerInterchange(
        layers=layers,
        exchanges=tuple(exchanges),
        against_moved=ShareTest.of(exchanged, moved, CONTROL_DRAWS),
        against_others=ShareTest.of(exchanged, others, len(EXCHANGES) - 1),
        sides=_contrast(known, copied, confidence) if known else None,
    )


def _roles(
    model: Transformer,
    asked: Sequence[NestedFraction],
    layers: Sequence[int],
    heads: Sequence[int],
) -> dict[int, list[Activations]]:
    """Return the roles of some heads in each layer: for each question (head, position, d_head)."""
    if not asked:
        return {layer: [] for layer in layers}
    recording = record(model, nested_sample(asked, ""), [role_of(layer) for layer in layers])
    return {layer: [own[list(heads)] for own in recording[role_of(layer)]] for layer in layers}


def _contrast(
    known: Sequence[NestedFraction], copied: Mapping[str, Answers], confidence: float
) -> SideContrast:
    """Compare reversed with unreversed copies."""
    right = {pair: [fraction.answer for fraction in known] for pair in copied}
    flipped = {pair: [fraction.flipped(pair[1]) for fraction in known] for pair in copied}

    def shares(pairs: Sequence[str], wanted: Answered) -> Floats:
        """Return the share of wanted answers: (copied or moved, question)."""
        found = [
            [np.equal(draws, wanted[pair]).mean(axis=0) for draws in copied[pair]] for pair in pairs
        ]
        return np.mean(found, axis=0, dtype=np.float64)

    def copies(pairs: Sequence[str]) -> CopiedRoles:
        kept, moved_kept = shares(pairs, right).mean(axis=1).tolist()
        gone, moved_gone = shares(pairs, flipped).mean(axis=1).tolist()
        return CopiedRoles(kept=kept, flipped=gone, moved_kept=moved_kept, moved_flipped=moved_gone)

    digits = [sorted(fraction.numbers) for fraction in known]
    sets, which = np.unique(digits, axis=0, return_inverse=True)
    n_questions = np.bincount(which.ravel())

    def contrast(more: Sequence[str], less: Sequence[str], wanted: Answered) -> Contrast:
        """Compare shares beyond the control after two kinds of copies."""
        (first, moved), (second, moved_second) = shares(more, wanted), shares(less, wanted)
        differences = (first - moved) - (second - moved_second)
        sums = np.bincount(which.ravel(), differences)
        interval = resample(
            len(sets),
            lambda drawn: (drawn @ sums) / (drawn @ n_questions),
            confidence=confidence,
        )
        return Contrast(value=float(differences.mean()), interval=interval)

    return SideContrast(
        reversed=copies(REVERSED_COPIES),
        unreversed=copies(UNREVERSED_COPIES),
        n_sets=len(sets),
        kept=contrast(REVERSED_COPIES, UNREVERSED_COPIES, right),
        flipped=contrast(UNREVERSED_COPIES, REVERSED_COPIES, flipped),
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
