"""The claims of sections 5 to 7 of the paper, and what the analyses of one model say about each.

The results of a model are the values in the JSON files of `tpt interpret`, by analysis. The
analysis `values` is `roles` with the value vectors of a TP-Transformer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tp_transformer.interpret.core.structure import SIDE
from tp_transformer.interpret.interchange import CONTROL_DRAWS
from tp_transformer.interpret.roles.reversal import REVERSED, SIDES
from tp_transformer.scoring.published import RECONSTRUCTION_ERROR

NEARLY_ALL = 0.9  # R2 from which on a vector holds nearly all of a state
NEARLY_OPTIMAL = 0.9  # of the variance that the best directions keep
RARELY = 0.05  # share of equal answers that a model gives by mistake
ONES = "ones digit"

Values = dict[str, Any]
Analyses = Mapping[str, Values]


@dataclass(frozen=True)
class Outcome:
    """Whether a claim holds for a model (None if that cannot be tested), and the numbers."""

    holds: bool | None
    numbers: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper, or a test of this project that follows up on one.

    Attributes:
        section: of the paper
        text: the claim
        criterion: when a model supports it, or why that is not tested
        needs: the analysis that tests it, which models without roles may lack; None if not tested
        test: from the values of that analysis to the outcome
        is_follow_up: whether it is a test of this project, not a claim of the paper
        is_of_architecture: whether it is about the architecture, and the same for all models
        is_of_plain: whether it is about Transformers, not TP-Transformers
    """

    section: str
    text: str
    criterion: str
    needs: str | None = None
    test: Callable[[Values], Outcome] | None = None
    is_follow_up: bool = False
    is_of_architecture: bool = False
    is_of_plain: bool = False

    def outcomes(self, models: Sequence[Analyses]) -> list[Outcome]:
        """Return the outcomes for some models, without those that lack the analysis."""
        if self.test is None or self.needs is None:
            return []
        return [self.test(analyses[self.needs]) for analyses in models if self.needs in analyses]


def verdict(outcomes: Sequence[Outcome], controls: Sequence[Sequence[Outcome]] = ()) -> str:
    """Return what the seeds say about a claim.

    A claim about roles is not specific to them if it holds for all models of a control.
    """
    tested = [outcome.holds for outcome in outcomes if outcome.holds is not None]
    if not tested:
        return "not testable"
    n_held = sum(tested)
    if n_held == len(tested):
        is_common = any(own and all(outcome.holds for outcome in own) for own in controls)
        text = "supported, not specific to roles" if is_common else "supported"
    else:
        text = f"supported by {n_held} of {len(tested)}" if n_held else "not supported"
    if len(tested) < len(outcomes):
        text += f" ({len(tested)} of {len(outcomes)} seeds testable)"
    return text


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{share:.0%}"


def between(interval: Sequence[float] | None, form: Callable[[float], str] = percent) -> str:
    """Return an interval in parentheses."""
    return "" if interval is None else f" ({form(interval[0])} to {form(interval[1])})"


def points(share: float) -> str:
    """Return a difference of shares in points; zero has no sign."""
    rounded = round(100 * share)
    return f"{rounded:+d}" if rounded else "0"


def _statements(values: Values) -> Iterator[tuple[int, set[str]]]:
    """Yield the head and the statements of each named cluster."""
    for head in values["heads"]:
        for name in head["names"]:
            if name is not None:
                yield head["head"], set(name["name"].split(", "))


def _clusters(values: Values) -> Outcome:
    named = list(_statements(values))
    heads = [{head for head, statements in named if side in statements} for side in SIDES]
    counts = [sum(side in statements for _, statements in named) for side in SIDES]
    n_both = len(heads[0] & heads[1])
    untrained = max(values["initial_structural_names"])
    n_clusters = values["clusters"] * len(values["heads"])
    return Outcome(
        n_both > 0 and min(counts) > untrained,
        f"{counts[0]} + {counts[1]} of {n_clusters}, both in {n_both} of {len(values['heads'])} "
        f"heads; untrained {untrained}",
    )


def _ones_digits(values: Values) -> Outcome:
    counts = [
        sum({ONES, side} <= statements for _, statements in _statements(values)) for side in SIDES
    ]
    untrained = max(values["initial_structural_names"])
    return Outcome(min(counts) > untrained, f"{counts[0]} + {counts[1]}; untrained {untrained}")


def _side_probe(values: Values) -> Outcome:
    label = next(label for label in values["labels"] if label["name"] == SIDE)
    if label["obstacle"] is not None:
        return Outcome(None, label["obstacle"])
    scores = [score for score in values["scores"] if score["label"] == SIDE and score["probe"]]
    best = max(scores, key=lambda score: score["probe"]["accuracy"])
    text = max(label["readers"].values(), key=lambda reader: reader["accuracy"])
    untrained = max(label["initial"], key=lambda reader: reader["accuracy"])
    limits = [control["interval"][1] for control in (text, *label["initial"])]
    return Outcome(
        best["probe"]["interval"][0] > max(limits),
        f"{percent(best['probe']['accuracy'])}{between(best['probe']['interval'])}, head "
        f"{best['layer']}.{best['head']}; text {percent(text['accuracy'])}, untrained "
        f"{percent(untrained['accuracy'])}",
    )


def _reversal(kind: str) -> Callable[[Values], Outcome]:
    def test(values: Values) -> Outcome:
        reversal = values["reversal"]
        if reversal["obstacle"] is not None:
            return Outcome(None, reversal["obstacle"])
        layers = [layer for layer in reversal["model"]["layers"] if layer["kind"] == kind]
        shares = [percent(layer["transfer"]["reversed_share"]) for layer in layers]
        last = layers[-1]
        return Outcome(
            last["verdict"] == REVERSED,
            f"{', '.join(shares)}{between(last['transfer']['interval'])}, in "
            f"{last['n_reversed']} of {last['n_heads']} heads",
        )

    return test


def _acting_sides(values: Values) -> Outcome:
    sides = [one["sides"] for one in values["interchanges"]]
    if None in sides:
        return Outcome(None, "no questions")
    numbers = f"{sides[0]['n_sets']} sets of digits"
    for name in ("kept", "flipped"):
        contrasts = [points(own[name]["value"]) + between(own[name]["interval"], points)
                     for own in sides]  # fmt: skip
        numbers += f"; {name} {', '.join(contrasts)}"
    if sides[0]["kept"]["interval"] is None:
        return Outcome(None, numbers)
    return Outcome(any(own["verdict"] == "roles act as reversed sides" for own in sides), numbers)


def _followed(values: Values) -> Outcome:
    interchanges = values["interchanges"]
    if not interchanges[0]["n"]:
        return Outcome(None, "no questions")
    shares = []
    for one in interchanges:
        places, moved, numbers = (
            sum(exchange[name]["exchanged"] for exchange in one["exchanges"]) / one["n"]
            for name in ("places", "moved", "numbers")
        )
        shares.append(f"{percent(places)} ({percent(moved / CONTROL_DRAWS)}; {percent(numbers)})")
    n_questions = interchanges[0]["exchanges"][0]["n"]
    return Outcome(
        any(one["follows"] for one in interchanges), f"{', '.join(shares)}; {n_questions} questions"
    )


def _relation(name: str) -> Callable[[Values], Outcome]:
    def test(values: Values) -> Outcome:
        ranking = next(one for one in values["rankings"] if one["relation"] == name)
        if not ranking["heads"] or ranking["heads"][0]["interval"] is None:
            return Outcome(None, f"{ranking['n_questions']} questions have it")
        clear = [head for head in ranking["heads"] if head["is_clear"]]
        best = (clear or ranking["heads"])[0]
        margin = f"{points(best['margin'])}{between(best['interval'], points)}"
        return Outcome(bool(clear), f"{margin}, head {best['layer']}.{best['head']}")

    return test


READINGS = ("positions", "problems")
LARGEST_ERROR = max(RECONSTRUCTION_ERROR.values())


def _error(values: Values) -> Outcome:
    errors = {
        state: [found["paper_protocol"][reading]["average_mse"] for reading in READINGS]
        for state, found in values["states"].items()
    }
    numbers = "; ".join(
        f"{state} {', '.join(f'{error:.3f}' for error in own)}" for state, own in errors.items()
    )
    return Outcome(max(errors["input"]) <= LARGEST_ERROR, numbers)


def _information(values: Values) -> Outcome:
    numbers, lows = [], []
    for state, found in values["states"].items():
        held_out = found["held_out"]
        random = held_out["random_map_range"]
        lows.append(held_out["average_interval"][0] > max(NEARLY_ALL, random[1]))
        numbers.append(
            f"{state} {held_out['average_r2']:.2f} (random maps {random[0]:.2f} to "
            f"{random[1]:.2f}, best possible {held_out['optimum_r2']:.2f})"
        )
    return Outcome(any(lows), "; ".join(numbers))


def _simplified(values: Values) -> Outcome:
    standard = max(one["greatest"] for one in values["simplified"]["standard"])
    tp = min(one["least"] for one in values["simplified"]["tp"])
    return Outcome(standard < 1e-9 < 1e-6 < tp, f"at most {standard:.0e}, at least {tp:.0e}")


def _confusion(values: Values) -> Outcome:
    own = [one for one in values["exchanges"] if one["letters"] in values["kinds"]["confusable"]]
    ratio = values["ratio_to_control"]
    answered = f"answers {own[0]['n_answered']} of {len(values['sample']['questions'])}"
    if not own[0]["n_answered"]:
        return Outcome(None, answered)
    same, right = (sum(one[name] for one in own) for name in ("n_same", "n_right"))
    return Outcome(
        any(one["same_interval"][0] > RARELY for one in own),
        f"{answered}; after {sum(one['n_answered'] for one in own)} exchanges {same} with the same "
        f"answer, {right} with the right one; states move {ratio['value']:.1f} times as far",
    )


def _mean_share(heads: Sequence[Values], name: str) -> float:
    return fmean(head["variance"][name] for head in heads)


def _optimal(values: Values) -> Outcome:
    shares = [
        _mean_share(values["heads"], name) for name in ("hadamard", "optimum", "aligned", "random")
    ]
    return Outcome(
        shares[0] >= NEARLY_OPTIMAL * shares[1],
        "{:.1%}; best directions {:.1%}, best rotations found {:.1%}, random ones {:.1%}".format(
            *shares
        ),
    )


def _beyond_random(heads: Sequence[Values]) -> int:
    return sum(head["variance"]["hadamard"] > head["variance"]["random_range"][1] for head in heads)


def _learned_coordinates(values: Values) -> Outcome:
    n_heads, untrained = len(values["heads"]), max(map(_beyond_random, values["initial"]))
    beyond = _beyond_random(values["heads"])
    return Outcome(
        beyond > untrained and beyond > n_heads / 2,
        f"{beyond} of {n_heads} heads; untrained {untrained}",
    )


MARGIN = (
    "In any layer, the margin of a head beyond all baselines lies clearly above 5 points of "
    "attention and above those of untrained models. Numbers: points, of the best head."
)
CLAIMS = (
    Claim(
        section="5.1",
        text="There are separate clusters for digits of numerators and of denominators.",
        criterion="A head of the last layer has clusters named after both sides, and there are "
        "more names of either side than names that say more than the character in any of three "
        "untrained models.",
        needs="roles",
        test=_clusters,
    ),
    Claim(
        section="5.1",
        text="There are clusters for ones digits of numerators and of denominators.",
        criterion="The last layer has clusters with both in their names, for both sides, more than "
        "there are names that say more than the character in any of three untrained models.",
        needs="roles",
        test=_ones_digits,
    ),
    Claim(
        section="5.1",
        text="Vectors of one head tell the side of a number.",
        criterion="A linear probe of the best head is more accurate than those of untrained models "
        "and of the text.",
        needs="roles",
        test=_side_probe,
        is_follow_up=True,
    ),
    Claim(
        section="5.1",
        text="Clusters are reversed in a denominator's denominator.",
        criterion="By the clusters of the heads of the last layer, sides are on average clearly "
        "reversed, more than in untrained models and text probes. Numbers: reversed predictions in "
        "each layer, and the heads of the last layer that are clearly reversed.",
        needs="roles",
        test=_reversal("clusters"),
    ),
    Claim(
        section="5.1",
        text="Vectors are reversed in a denominator's denominator.",
        criterion="The same by linear probes of the last layer.",
        needs="roles",
        test=_reversal("probe"),
        is_follow_up=True,
    ),
    Claim(
        section="5.1",
        text='The reversal is "arguably simplifying the division of fractions into a '
        'multiplication": roles act as the reversed sides.',
        criterion="In a layer or in all at once, a number of the denominator keeps clearly more "
        "answers with the role of the same reversed side than with that of the same unreversed "
        "side, which flips clearly more answers; both beyond the control. Numbers: points in each "
        "layer and in all layers.",
        needs="interchange",
        test=_acting_sides,
    ),
    Claim(
        section="5.2",
        text="A head attends from a second argument to its operator.",
        criterion=MARGIN,
        needs="attention",
        test=_relation("second argument to its operator"),
    ),
    Claim(
        section="5.2",
        text="A head attends from denominators to their division.",
        criterion="The same.",
        needs="attention",
        test=_relation("denominator to its division"),
    ),
    Claim(
        section="5.2",
        text="A head skips a numerator between two denominators.",
        criterion="The same.",
        needs="attention",
        test=_relation("denominator to its division, past a numerator"),
    ),
    Claim(
        section="6.1",
        text="The state is reconstructed from the value vector of one head with a small error.",
        criterion=f"By the paper's protocol, the mean squared error of the input of the last layer "
        f"is at most {LARGEST_ERROR}, the paper's for the TP-Transformer (Transformer: "
        f"{RECONSTRUCTION_ERROR['transformer']}), by both readings of a sample. Numbers: errors of "
        f"{' and '.join(f'100 {reading}' for reading in READINGS)}.",
        needs="information",
        test=_error,
    ),
    Claim(
        section="6.1",
        text="So the value vector of one head holds nearly the full information of the state.",
        criterion=f"R2 on held-out questions is clearly above {NEARLY_ALL} and above those of "
        "random value maps.",
        needs="information",
        test=_information,
    ),
    Claim(
        section="6.1",
        text="Attention routes several local sources of information into one global tree.",
        criterion="Not tested: the paper does not say how this would be measured.",
    ),
    Claim(
        section="6.2",
        text="The simplified network confuses two structures with standard attention, and does not "
        "with TP-attention.",
        criterion="Distances of random networks are 0 to machine precision, and are not.",
        needs="binding",
        test=_simplified,
        is_of_architecture=True,
    ),
    Claim(
        section="6.2",
        text="A trained Transformer confuses the two structures.",
        criterion="After one of the exchanges that the simplified network confuses, in questions "
        f"that it answers, the share of equal answers is clearly above {RARELY:.0%} (Wilson). "
        "States, at the outer operator: as far as after exchanges that keep the value.",
        needs="binding",
        test=_confusion,
        is_of_plain=True,
    ),
    Claim(
        section="6.2",
        text="To tell the two structures apart, a Transformer must recruit other heads, or "
        "non-linear maps.",
        criterion="Not tested: the analyses show whether it does, not how.",
    ),
    Claim(
        section="6.2",
        text="Answers follow roles that are exchanged.",
        criterion="In a layer or in all at once, if two numbers have the roles of each other's "
        "place, more answers than in both controls are as if the numbers were exchanged. States "
        "also encode positions, so that a model may bind by roles and fail this test. Numbers: the "
        "share in each layer and in all layers; in parentheses, after moves in random directions, "
        "and if two places have the roles of each other's number.",
        needs="interchange",
        test=_followed,
        is_follow_up=True,
    ),
    Claim(
        section="7",
        text="The Hadamard product is an optimal compression of the tensor product.",
        criterion=f"It keeps at least {NEARLY_OPTIMAL:.0%} of the variance that as many best "
        "directions keep. Numbers: shares of the variance.",
        needs="tensor-product",
        test=_optimal,
    ),
    Claim(
        section="7",
        text="Training turns fillers and roles towards coordinates in which more is kept.",
        criterion="In most heads, the Hadamard product keeps more than 97.5% of random rotations "
        "do, and in more heads than in any untrained model.",
        needs="tensor-product",
        test=_learned_coordinates,
        is_follow_up=True,
    ),
)
