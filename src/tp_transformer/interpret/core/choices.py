"""Positions, relations and questions that an analysis is asked to look at."""

from collections.abc import Sequence

from tp_transformer.errors import SettingsError
from tp_transformer.expressions import Expression
from tp_transformer.interpret.core.structure import (
    NUMERATOR,
    PLACES,
    RELATIONS,
    PositionFinder,
    Relation,
    places,
)
from tp_transformer.settings import nearest


def chosen_relations(relation: str | None) -> dict[str, Relation]:
    """Return one relation, or all of them."""
    if relation is None:
        return RELATIONS
    if relation not in RELATIONS:
        raise SettingsError(
            f"there is no relation {relation!r}{nearest(relation, RELATIONS)}; "
            f"choose one of: {'; '.join(RELATIONS)}"
        )
    return {relation: RELATIONS[relation]}


def chosen_place(place: str) -> PositionFinder:
    """Return the function that finds a place such as `denominators` in an expression."""
    if place not in PLACES:
        raise SettingsError(
            f"there is no place {place!r}{nearest(place, PLACES)}; "
            f"choose one of: {'; '.join(PLACES)}"
        )
    return PLACES[place]


def chosen_questions(
    questions: Sequence[str],
    expressions: Sequence[Expression | None],
    count: int,
    n_characters: int,
) -> list[int]:
    """Return the indices of questions to show.

    Questions that fit on a line of `n_characters` come first, then fractions of fractions, then
    short questions.
    """

    def rank(index: int) -> tuple[bool, bool, int]:
        expression = expressions[index]
        is_nested = expression is not None and any(
            place.side == NUMERATOR and place.division is not None
            for _, place in places(expression.tree)
        )
        length = len(questions[index])
        return length + 2 > n_characters, not is_nested, length

    return sorted(range(len(questions)), key=rank)[:count]
