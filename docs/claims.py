"""The claims of sections 5 to 7 of the paper, and what the analyses of one model say about each.

A model is given by its results: the values in the JSON files of `tpt interpret`, by analysis. The
analysis `values` is `roles` with the value vectors of a TP-Transformer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tp_transformer.interpret.core.structure import DENOMINATOR, NUMERATOR, SIDE
from tp_transformer.interpret.interchange.result import CONTROL_DRAWS, LARGEST_P
from tp_transformer.interpret.roles.reversal import REVERSED

NEARLY_ALL = 0.9  # R2 from which on a vector holds nearly all of a state
NEARLY_OPTIMAL = 0.9  # of the variance that the best rotations keep
ONES = "ones digit"
SIDES = (NUMERATOR, DENOMINATOR)

Values = dict[str, Any]
Found = Mapping[str, Values]


@dataclass(frozen=True)
class Outcome:
    """Whether a claim holds for a model (None if that cannot be tested), and the numbers."""

    holds: bool | None
    numbers: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        section: of the paper
        text: what it claims
        criterion: when a model supports it
        needs: the analysis that tests it; a model without it has no outcome
        test: from the values of that analysis to the outcome
        is_contrast: whether the claim is that it holds for plain attention and not for TP-attention
    """

    section: str
    text: str
    criterion: str
    needs: str
    test: Callable[[Values], Outcome]
    is_contrast: bool = False

    def outcomes(self, models: Iterable[Found]) -> list[Outcome]:
        """Return the outcomes for some models, without those that lack the roles it needs."""
        return [self.test(found[self.needs]) for found in models if self.needs in found]

    def verdict(self, tp: Sequence[Found], plain: Sequence[Found]) -> str:
        """Return what the seeds of TP-Transformers say, and of Transformers for a contrast."""
        outcomes = self.outcomes(tp)
        if self.is_contrast:
            others = self.outcomes(plain)
            outcomes = [
                Outcome(None if own.holds is None else bool(other.holds) and not own.holds, "")
                for own, other in zip(outcomes, others, strict=True)
            ]
        return verdict(outcomes)


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
    named = [(head, own & set(SIDES)) for head, own in _statements(values)]
    of_side = {side: {head for head, own in named if side in own} for side in SIDES}
    counts = [sum(side in own for _, own in named) for side in SIDES]
    n_heads = len(of_side[NUMERATOR] & of_side[DENOMINATOR])
    n_clusters = values["clusters"] * len(values["heads"])
    structural = sum(
        name["is_structural"] for head in values["heads"] for name in head["names"] if name
    )
    initial = values["initial_structural_names"]
    return Outcome(
        n_heads > 0 and structural > initial,
        f"{counts[0]} + {counts[1]} of {n_clusters}, both in {n_heads} heads; names beyond the "
        f"character {structural}, untrained {initial}",
    )


def _ones_digits(values: Values) -> Outcome:
    counts = [sum({ONES, side} <= own for _, own in _statements(values)) for side in SIDES]
    return Outcome(min(counts) > 0, f"{counts[0]} + {counts[1]}")


def _side_probe(values: Values) -> Outcome:
    label = next(label for label in values["labels"] if label["name"] == SIDE)
    if label["obstacle"] is not None:
        return Outcome(None, label["obstacle"])
    own = [score for score in values["scores"] if score["label"] == SIDE and score["probe"]]
    best = max(own, key=lambda score: score["probe"]["accuracy"])
    text = max(label["readers"].values(), key=lambda reader: reader["accuracy"])
    initial = max(label["initial"], key=lambda reader: reader["accuracy"])
    low = best["probe"]["interval"][0]
    return Outcome(
        low > text["interval"][1] and low > max(one["interval"][1] for one in label["initial"]),
        f"{percent(best['probe']['accuracy'])}{between(best['probe']['interval'])}, head "
        f"{best['layer']}.{best['head']}; text {percent(text['accuracy'])}, untrained "
        f"{percent(initial['accuracy'])}",
    )


def _reversal(kind: str) -> Callable[[Values], Outcome]:
    def test(values: Values) -> Outcome:
        reversal = values["reversal"]
        if reversal["obstacle"] is not None:
            return Outcome(None, reversal["obstacle"])
        own = [layer for layer in reversal["model"]["layers"] if layer["kind"] == kind]
        shares = [percent(layer["transfer"]["reversed_share"]) for layer in own]
        interval, n_reversed = between(own[-1]["transfer"]["interval"]), own[-1]["n_reversed"]
        return Outcome(
            own[-1]["verdict"] == REVERSED,
            f"{', '.join(shares)}{interval}, in {n_reversed} of {own[-1]['n_heads']} heads",
        )

    return test


def _by_layer(values: Values) -> list[Values]:
    """Return the interchanges of single layers."""
    return [one for one in values["interchanges"] if len(one["layers"]) == 1]


def _n_known(values: Values) -> int:
    """Return the number of questions of an interchange."""
    n: int = values["interchanges"][0]["exchanges"][0]["n"]
    return n


def _acting_sides(values: Values) -> Outcome:
    n = _n_known(values)
    sides = [one["sides"] for one in _by_layer(values)]
    if not n or sides[-1]["interval"] is None:
        return Outcome(None, f"{n} questions")
    differences = ", ".join(points(own["difference"]) for own in sides)
    found = f"{differences}{between(sides[-1]['interval'], points)}, {n} questions"
    return Outcome(max(own["interval"][0] for own in sides) > 0, found)


def _followed(values: Values) -> Outcome:
    n = _n_known(values)
    if not n:
        return Outcome(None, "0 questions")
    clear, shares = False, []
    for one in values["interchanges"]:
        places, moved, numbers = (
            sum(own[name]["exchanged"] for own in one["exchanges"]) / sum(_counted(one))
            for name in ("places", "moved", "numbers")
        )
        p_values = [one[test]["p_value"] for test in ("against_moved", "against_others")]
        clear |= max(p_values) <= LARGEST_P
        shares.append(f"{percent(places)} ({percent(moved / CONTROL_DRAWS)}; {percent(numbers)})")
    return Outcome(clear, f"{', '.join(shares)}; {n} questions")


def _counted(interchange: Values) -> list[int]:
    """Return the number of answers for each exchange."""
    return [exchange["n"] for exchange in interchange["exchanges"]]


def _relation(name: str) -> Callable[[Values], Outcome]:
    def test(values: Values) -> Outcome:
        ranking = next(one for one in values["rankings"] if one["relation"] == name)
        if not ranking["heads"] or ranking["heads"][0]["interval"] is None:
            return Outcome(None, f"{ranking['n_questions']} questions have it")
        clear = [head for head in ranking["heads"] if head["is_clear"]]
        best = (clear or ranking["heads"])[0]
        found = f"{points(best['margin'])}{between(best['interval'], points)}"
        return Outcome(bool(clear), f"{found}, head {best['layer']}.{best['head']}")

    return test


def _information(values: Values) -> Outcome:
    held_out = values["states"]["output"]["held_out"]
    low, high = held_out["random_map_range"]
    return Outcome(
        held_out["average_interval"][0] > NEARLY_ALL,
        f"R2 {held_out['average_r2']:.2f}; random maps {low:.2f} to {high:.2f}, best possible "
        f"{held_out['optimum_r2']:.2f}",
    )


def _simplified(values: Values) -> Outcome:
    standard = max(one["greatest"] for one in values["simplified"]["standard"])
    tp = min(one["least"] for one in values["simplified"]["tp"])
    return Outcome(standard < 1e-9 < 1e-6 < tp, f"at most {standard:.0e}, at least {tp:.0e}")


def _confusion(values: Values) -> Outcome:
    ratio = values["ratio_to_control"]
    initial = sorted(values["initial_ratios_to_control"])
    answered = max(one["n_answered"] for one in values["exchanges"])
    low, high = ratio["interval"]
    return Outcome(
        high < min(1, initial[0]),
        f"{ratio['value']:.2f} ({low:.2f} to {high:.2f}); untrained {initial[0]:.2f} to "
        f"{initial[-1]:.2f}; answers {answered} of {len(values['sample']['questions'])}",
    )


def _optimal(values: Values) -> Outcome:
    def mean(name: str) -> float:
        return sum(head["variance"][name] for head in values["heads"]) / len(values["heads"])

    hadamard, aligned, random = mean("hadamard"), mean("aligned"), mean("random")
    return Outcome(
        hadamard >= NEARLY_OPTIMAL * aligned,
        f"{hadamard:.1%}; best rotations {aligned:.1%}, random ones {random:.1%}",
    )


CLAIMS = (
    Claim(
        "5.1",
        "There are separate clusters for digits of numerators and of denominators.",
        "A head of the last layer has clusters named after both sides, and there are more names "
        "that say more than the character than in an untrained model.",
        "roles",
        _clusters,
    ),
    Claim(
        "5.1",
        "There are clusters for ones digits of numerators and of denominators.",
        "The last layer has clusters with both in their names, for both sides.",
        "roles",
        _ones_digits,
    ),
    Claim(
        "5.1",
        "Vectors of one head tell the side of a number.",
        "A linear probe of the best head is more accurate than those of untrained models and of "
        "the text.",
        "roles",
        _side_probe,
    ),
    Claim(
        "5.1",
        "Clusters are reversed in a denominator's denominator.",
        "By the clusters of the heads of the last layer, sides are on average clearly reversed, "
        "more than in untrained models and text probes. Numbers: reversed predictions in each "
        "layer, and the heads of the last layer that are clearly reversed.",
        "roles",
        _reversal("clusters"),
    ),
    Claim(
        "5.1",
        "Vectors are reversed in a denominator's denominator.",
        "The same by linear probes of the last layer.",
        "roles",
        _reversal("probe"),
    ),
    Claim(
        "5.1",
        "Reversed roles act as such: the answer depends on them.",
        "In a layer, a denominator's number with the role of the same reversed side keeps clearly "
        "more answers than with the role of the same unreversed side. Numbers: points in each "
        "layer.",
        "interchange",
        _acting_sides,
    ),
    Claim(
        "5.2",
        "A head attends from a second argument to its operator.",
        "Its margin beyond all baselines is clear. Numbers: points of attention.",
        "attention",
        _relation("second argument to its operator"),
    ),
    Claim(
        "5.2",
        "A head attends from denominators to their division.",
        "The same.",
        "attention",
        _relation("denominator to its division"),
    ),
    Claim(
        "5.2",
        "A head skips a numerator between two denominators.",
        "The same.",
        "attention",
        _relation("denominator to its division, past a numerator"),
    ),
    Claim(
        "6.1",
        "The value vector of one head holds nearly all of the state.",
        f"R2 of the output of the last layer on held-out questions is clearly above {NEARLY_ALL}.",
        "information",
        _information,
    ),
    Claim(
        "6.2",
        "The simplified network confuses two structures with standard attention, and does not "
        "with TP-attention.",
        "Distances of random networks are 0 to machine precision, and are not.",
        "binding",
        _simplified,
    ),
    Claim(
        "6.2",
        "The trained Transformer confuses them: exchanges that the simplified network confuses "
        "change its state less than others. The TP-Transformer does not.",
        "The ratio of the two distances is clearly below 1 and below those of untrained models for "
        "the Transformer, and not for the TP-Transformer.",
        "binding",
        _confusion,
        is_contrast=True,
    ),
    Claim(
        "6.2",
        "Roles tell structures apart: the answer follows exchanged places.",
        "In a layer or in all at once, if two numbers have the roles of each other's place, more "
        "answers than in both controls are as if the numbers were exchanged. Numbers: their share "
        "in each layer and in all layers; in parentheses, after moves in random directions, and if "
        "two places have the roles of each other's number.",
        "interchange",
        _followed,
    ),
    Claim(
        "7",
        "The Hadamard product is an optimal compression of the tensor product.",
        f"It keeps at least {NEARLY_OPTIMAL:.0%} of the variance that the best rotations keep.",
        "tensor-product",
        _optimal,
    ),
)


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Return what the outcomes of several seeds say about a claim."""
    tested = [outcome.holds for outcome in outcomes if outcome.holds is not None]
    if not tested:
        return "not testable"
    if all(tested):
        return "supported"
    return f"supported by {sum(tested)} of {len(tested)}" if any(tested) else "not supported"
