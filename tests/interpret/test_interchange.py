"""Machines that go by roles, or do not, answer as they must when roles are exchanged."""

from fractions import Fraction
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer.interpret import interchange
from tp_transformer.interpret.core import operations
from tp_transformer.interpret.core.record import record
from tp_transformer.interpret.core.sample import (
    Sample,
    drawn_sample,
    nested_fractions,
    read_fractions,
    token_characters,
)
from tp_transformer.interpret.interchange import (
    CONTROL_DRAWS,
    EXCHANGES,
    REVERSED_COPIES,
    UNREVERSED_COPIES,
    Contrast,
)

analysis = import_module("tp_transformer.interpret.interchange")

ROLE = operations.role_of(0)
PLACES = 48  # more than the positions of a question


def interchanges(model, asked, layer):
    return analysis.interchanges(model, asked, [layer], range(model.config.n_heads), seed=0)


class Machine:
    """Answers questions by the characters that it reads.

    A role has the place of a token and its number, if it is a digit: both one-hot.
    """

    config = SimpleNamespace(binding="hadamard", n_layers=2, n_heads=3)

    def solve(self, questions):
        return [read(dict(enumerate(token_characters(question)))) for question in questions]


def read(placed):
    a, b, c, d = (int(placed[at]) for at in sorted(placed) if placed[at].isdigit())
    return str(Fraction(a * d, b * c))


def roles_of(question):
    """(head, position, place and number)."""
    roles = torch.zeros(3, len(question) + 2, PLACES + 10)
    for place, character in enumerate(token_characters(question)):
        roles[:, place, place] = 1
        if character.isdigit():
            roles[:, place, PLACES + int(character)] = 1
    return roles


def is_clear(roles):
    """Whether all roles are ones and zeros, as the machine knows them."""
    return bool(torch.isin(roles, torch.tensor([0.0, 1.0])).all())


@pytest.fixture
def machine(monkeypatch):
    """Return a function that makes a machine answer by its roles after operations."""

    def recorded(model, sample, names):
        roles = [roles_of(question).numpy() for question in sample.questions]
        return dict.fromkeys(names, roles)

    def answering(by_roles):
        def solved(model, questions, *, heads, operations):
            after = [
                [operation(index, roles_of(question)) for operation in operations.values()]
                for index, question in enumerate(questions)
            ]
            return [
                by_roles(question, roles[-1]) if all(map(is_clear, roles)) else ""
                for question, roles in zip(questions, after, strict=True)
            ]

        monkeypatch.setattr(operations, "solve", solved)
        monkeypatch.setattr(analysis, "record", recorded)
        return Machine()

    return answering


def by_places(question, roles):
    """Read each token at the place that its role has."""
    places = roles[0, :, :PLACES].argmax(dim=-1).tolist()
    if len(set(places)) < len(places):
        return ""
    return read(dict(zip(places, token_characters(question), strict=True)))


def by_numbers(question, roles):
    """Read the number that the role of a token has."""
    numbers = roles[0, :, PLACES:].argmax(dim=-1).tolist()
    tokens = enumerate(token_characters(question))
    return read({place: str(numbers[place]) if one.isdigit() else one for place, one in tokens})


def counts(exchanges, name):
    return {(getattr(one, name).exchanged, getattr(one, name).kept) for one in exchanges}


def test_who_goes_by_places_answers_as_if_numbers_were_exchanged(machine):
    found = interchanges(machine(by_places), nested_fractions(20), 1)
    assert [one.layers for one in found] == [(1,), (0, 1)]
    for one in found:
        assert [each.letters for each in one.exchanges] == ["ab", "ac", "bd", "cd"]
        assert {each.n for each in one.exchanges} == {20}
        assert counts(one.exchanges, "places") == {(20, 0)}
        assert counts(one.exchanges, "moved") == {(0, 0)}
        assert counts(one.exchanges, "numbers") == {(0, 20)}
        for test in (one.against_moved, one.against_others):
            assert (test.count, test.n, test.expected) == (80, 80, 0.25)
            assert test.p_value == pytest.approx(4 * 0.25**80)  # four tests
        assert one.sides.reversed.kept == one.sides.unreversed.kept == 0
        assert "not clear that roles act as sides" in one.summary()
    assert list(found[0].rows()) == [
        ("places, layer 1", "80", "80", "0.0", "0"),
        ("random directions, layer 1", "80", "0.0", "0.0", "0.0"),
        ("numbers, layer 1", "80", "0", "0.0", "80"),
    ]
    assert "the answer follows the places more often than in both controls" in found[1].summary()
    assert "it follows numbers in 0% of the cases" in found[1].summary()
    assert "in all layers at once: " in found[1].summary()


def test_who_goes_by_numbers_does_not_follow_places(machine):
    """Roles that merely encode the number must not be mistaken for its place."""
    for one in interchanges(machine(by_numbers), nested_fractions(20), 1):
        assert counts(one.exchanges, "places") == {(0, 20)}
        assert counts(one.exchanges, "numbers") == {(20, 0)}
        assert (one.against_moved.count, one.against_moved.p_value) == (0, 1)
        assert "is not clear that the answer follows the places" in one.summary()
        assert "it follows numbers in 100% of the cases" in one.summary()
        assert one.sides.reversed.kept == one.sides.unreversed.kept == 1


@pytest.mark.parametrize("heads", [(0, 1, 2), (2,)])
def test_roles_are_exchanged_in_the_heads_and_layers_that_are_named(heads, machine, monkeypatch):
    asked, model = [], machine(by_places)

    def note(model, questions, *, heads, operations):
        asked.append((tuple(operations), tuple(heads)))
        return model.solve(questions)

    monkeypatch.setattr(operations, "solve", note)
    analysis.interchanges(model, nested_fractions(5), [1], heads, seed=0)
    n = (len(EXCHANGES) + len(REVERSED_COPIES + UNREVERSED_COPIES)) * (1 + CONTROL_DRAWS)
    n += len(EXCHANGES)  # of numbers
    assert asked == [((1,), heads)] * n + [((0, 1), heads)] * n


def test_who_does_not_go_by_roles_answers_as_before(machine, monkeypatch):
    def unmoved(model, questions, **_):
        return model.solve(questions)

    model = machine(by_places)
    monkeypatch.setattr(operations, "solve", unmoved)
    for one in interchanges(model, nested_fractions(20), 0):
        assert counts(one.exchanges, "places") == counts(one.exchanges, "numbers") == {(0, 20)}
        assert counts(one.exchanges, "moved") == {(0, 20 * CONTROL_DRAWS)}
        for test in (one.against_moved, one.against_others):
            assert (test.count, test.n, test.p_value) == (0, 0, 1)
        assert "is not clear" in one.summary()
        copied = one.sides.reversed, one.sides.unreversed
        assert {(own.kept, own.moved_kept, own.flipped) for own in copied} == {(1, 1, 0)}
        assert "not clear that roles act as sides" in one.summary()


@pytest.mark.parametrize("numerators", ["ad", "ac"])
def test_who_goes_by_sides_keeps_the_answer_if_they_are_the_same(numerators, machine):
    """Who finds a number at a place of the other side answers accordingly."""
    asked = nested_fractions(20)
    fractions = {fraction.question: fraction for fraction in asked}

    def by_sides(question, roles):
        fraction = fractions[question]
        letters = {fraction.position(letter): letter for letter in "abcd"}
        found = roles[0, :, :PLACES].argmax(dim=-1).tolist()
        changed = [
            letter
            for place, letter in letters.items()
            if (letter in numerators) != (letters[found[place]] in numerators)
        ]
        if len(changed) == 1:
            return fraction.flipped(changed[0])
        return fraction.answer if not changed else ""

    for one in interchanges(machine(by_sides), asked, 0):
        same, other = one.sides.reversed, one.sides.unreversed
        if numerators == "ac":
            same, other = other, same
        assert (same.kept, same.flipped) == (1, 0)
        assert (other.kept, other.moved_kept, other.flipped, other.moved_flipped) == (0, 0, 1, 0)
        sign = 1 if numerators == "ad" else -1
        assert one.sides.kept.value == one.sides.flipped.value == sign
        assert one.sides.kept.sign == one.sides.flipped.sign == sign
        said = "reversed" if numerators == "ad" else "unreversed"
        assert f"roles act as {said} sides (points of answers" in one.summary()
        assert next(one.side_rows())[0] == f"c at b, d at a, {one.where}"


def test_who_is_disturbed_by_far_copies_alone_does_not_go_by_sides(machine, monkeypatch):
    """Roles of the same reversed side are near each other, so that fewer answers change."""
    near = {"a": [0, 0], "d": [0, 0.1], "b": [9, 0], "c": [9, 0.1]}

    def recorded(model, sample, names):
        roles = []
        for fraction in read_fractions(sample):
            own = np.zeros((3, PLACES, 2), np.float32)
            for letter, vector in near.items():
                own[:, fraction.position(letter)] = vector
            roles.append(own)
        return dict.fromkeys(names, roles)

    def solved(model, questions, *, heads, operations):
        sample = Sample(questions=tuple(questions), answers=("",) * len(questions), origin="")
        roles = [torch.tensor(own) for own in recorded(model, sample, [0])[0]]
        return [
            answer if all((op(i, own) - own).norm() < 1 for op in operations.values()) else ""
            for i, (own, answer) in enumerate(zip(roles, model.solve(questions), strict=True))
        ]

    model = machine(by_places)
    monkeypatch.setattr(operations, "solve", solved)
    monkeypatch.setattr(analysis, "record", recorded)
    for one in interchanges(model, nested_fractions(60), 0):
        assert (one.sides.reversed.kept, one.sides.unreversed.kept) == (1, 0)
        assert one.sides.kept == Contrast(value=0, interval=(0, 0))
        assert "not clear that roles act as sides" in one.summary()


def test_answers_that_are_kept_but_never_flipped_follow_no_side(machine):
    asked = nested_fractions(30)
    answers = {fraction.question: fraction for fraction in asked}

    def by_distance(question, roles):
        """Give another answer if a number has the role of a place that is not beside it."""
        fraction = answers[question]
        sources = roles[0, :, :PLACES].argmax(dim=-1).tolist()
        found = {letter: sources[fraction.position(letter)] for letter in "cd"}
        places = {fraction.position(letter): letter for letter in "abcd"}
        copied = {(places[at], letter) for letter, at in found.items()}
        return "" if copied & {("a", "c"), ("b", "d")} else fraction.answer

    for one in interchanges(machine(by_distance), asked, 0):
        assert one.sides.kept.value == 1
        assert one.sides.flipped.value == 0
        assert "copies from the same reversed side disturb less, but" in one.summary()


def test_too_few_sets_of_digits_have_no_interval(machine):
    asked = [
        fraction for fraction in nested_fractions(1680) if set(fraction.numbers) <= set(range(2, 7))
    ]
    (one, _) = interchanges(machine(by_places), asked[::4], 0)
    assert one.exchanges[0].n > 20
    assert one.sides.n_sets == 5
    assert one.sides.kept.interval is None
    assert "not clear that roles act as sides" in one.summary()


def have_different_answers(fraction):
    return len({fraction.exchanged(pair).answer for pair in EXCHANGES}) == len(EXCHANGES)


def test_who_is_merely_disturbed_gives_any_of_the_answers(machine):
    """After an exchange, but not after the control, it answers as after any exchange at random."""
    rng = np.random.default_rng(0)
    asked = nested_fractions(60)
    by_question = {one.question: one for one in asked}

    def disturbed(question, roles):
        return by_question[question].exchanged(str(rng.choice(EXCHANGES))).answer

    for one in interchanges(machine(disturbed), asked, 0):
        assert one.against_moved.p_value < 1e-6
        assert one.against_others.p_value > 0.05
        assert "is not clear" in one.summary()


@pytest.mark.parametrize("count", [1, 7, 2000])
def test_fractions_that_are_answered_before_and_after_are_drawn(count):
    forgotten = {fraction.question for fraction in nested_fractions(1200)}

    class Forgetful(Machine):
        def solve(self, questions):
            return ["" if one in forgotten else super(Forgetful, self).solve([one])[0]
                    for one in questions]  # fmt: skip

    all_fractions = nested_fractions(1680)
    wanted = [
        fraction
        for fraction in all_fractions
        if {fraction.question, *(fraction.exchanged(pair).question for pair in EXCHANGES)}
        .isdisjoint(forgotten)
        and have_different_answers(fraction)
    ]  # fmt: skip
    found = analysis.exchangeable_sample(Forgetful(), count, seed=0)
    assert found.questions == tuple(one.question for one in wanted[:count])
    assert ("all of 1,680" in found.origin) == (len(wanted) < count)


def test_any_fractions_are_drawn_if_none_is_answered():
    class Ignorant(Machine):
        def solve(self, questions):
            return ["" for _ in questions]

    assert analysis.exchangeable_sample(Ignorant(), 5, seed=0) == drawn_sample(5, 0)


def test_a_model_that_knows_nothing(tmp_path):
    found = interchange(tpt.build("tp-transformer-tiny", d_model=32), drawn_sample(3, 0), layer=0)
    assert [one.layers for one in found.interchanges] == [(0,), (0, 1)]
    for one in found.interchanges:
        assert all(each.n == each.places.kept == 0 for each in one.exchanges)
        assert "the model answers no question" in one.summary()
        assert one.against_moved.p_value == one.against_others.p_value == 1
    assert len(found.summary()) == 2
    assert found.tables() == []
    assert [file.name for file in found.save(tmp_path)] == ["interchange.json"]


def test_answers_are_decoded_under_the_operation(half_trained):
    model = tpt.load(half_trained)
    questions = ["What is 3 + 4?", "Calculate 12 - 5.", "7 + 1"]
    heads, unmoved = range(4), operations.replaced
    roles = record(
        model, Sample(questions=tuple(questions), answers=("1",) * 3, origin=""), [ROLE]
    )[ROLE]
    said = operations.solve(model, questions, heads=heads, operations={0: unmoved(roles)})
    assert said == model.solve(questions)
    said = operations.solve(model, questions, heads=heads, operations={0: operations.zeroed()})
    with torch.no_grad():
        for part in model.encoder[0].self_attention.maps()["role"]:
            part.zero_()
    assert said == model.solve(questions)
