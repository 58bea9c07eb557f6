"""Which heads, positions and questions an analysis looks at."""

from collections.abc import Iterable

from tp_transformer.errors import SettingsError
from tp_transformer.interpret.expressions import parse
from tp_transformer.interpret.record import symbols
from tp_transformer.interpret.structure import (
    NUMERATOR,
    PLACES,
    RELATIONS,
    Positions,
    Relation,
    places,
)
from tp_transformer.settings import nearest


def chosen_heads(head: int | None, n_heads: int) -> list[int]:
    """One head, or every head."""
    if head is None:
        return list(range(n_heads))
    if not 0 <= head < n_heads:
        raise SettingsError(f"the model has heads 0 to {n_heads - 1}, not {head}")
    return [head]


def chosen_relations(relation: str | None) -> dict[str, Relation]:
    """One relation, or all of them."""
    if relation is None:
        return RELATIONS
    if relation not in RELATIONS:
        raise SettingsError(
            f"there is no relation {relation!r}{nearest(relation, RELATIONS)}; "
            f"there are: {'; '.join(RELATIONS)}"
        )
    return {relation: RELATIONS[relation]}


def chosen_place(place: str) -> Positions:
    """The function that finds such a place in an expression."""
    if place not in PLACES:
        raise SettingsError(
            f"there is no place {place!r}{nearest(place, PLACES)}; there are: {'; '.join(PLACES)}"
        )
    return PLACES[place]


def chosen_positions(questions: Iterable[str], place: str) -> list[list[int]]:
    """The source positions of each question that are such a place of its expression."""
    find = chosen_place(place)
    parsed = (parse(question) for question in questions)
    return [[] if expression is None else find(expression) for expression in parsed]


def chosen_questions(questions: Iterable[str], count: int, in_line: int) -> list[int]:
    """Which questions to show: those with fractions of fractions first, and such as fit a line.

    A line has room for so many symbols.
    """

    def rank(question: str) -> tuple[bool, int, int]:
        expression = parse(question)
        swapped = 0
        if expression is not None:
            swapped = sum(
                place.side == NUMERATOR and place.division is not None
                for _, place in places(expression.tree)
            )
        return len(symbols(question)) > in_line, -min(swapped, 1), len(question)

    ranked = sorted(enumerate(questions), key=lambda one: rank(one[1]))
    return [number for number, _ in ranked[:count]]
