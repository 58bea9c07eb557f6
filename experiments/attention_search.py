"""Error rates of the attention search for synthetic heads whose rule is known.

    python experiments/attention_search.py --count 128 --searches 8
    python experiments/attention_search.py --count 32 --searches 8

Structure-blind heads depend on characters, distance and position only, and must not be called clear
for any relation. The others follow one relation with a share of their attention, and should be
called clear. All have independent noise at each pair of positions. For each head, prints the number
of searches or verdicts in which it is clear, and the largest or mean margin in points; at the end,
the number of questions of two modules that have a numerator to skip. The results are in
docs/interpretation.md.
"""

import argparse
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tp_transformer.data.mathematics.produce import generate
from tp_transformer.interpret.attention.following import ModelAttention, Ranking, rank
from tp_transformer.interpret.core.relations import OF_EXPRESSIONS as RELATIONS
from tp_transformer.interpret.core.relations import Relation
from tp_transformer.interpret.core.sample import token_characters
from tp_transformer.scoring.expressions import Expression, parse

Floats = npt.NDArray[np.float64]
Head = Callable[[str, int], Floats]  # the strength of each key, for a text and a query

MODULE = "arithmetic__mixed"
OPERATORS = "+-*/"
NOISE = 0.5  # standard deviation of the logits around those of the rule
SHARES = (0.2, 0.4, 0.8)  # shares of attention in heads that follow a relation
SKIPPING = "denominator to its division, past a numerator"  # the rarest relation
COUNTED = 1000  # questions in which its occurrences are counted
STEEP = 20.0  # difference of logits between two distances: the nearest key gets all attention


def _nearest(characters: str, *, steepness: float, left: bool = True, right: bool = True) -> Head:
    """Return a head that attends to certain characters on one or both sides, mostly the nearest."""

    def head(text: str, at: int) -> Floats:
        distance = np.arange(len(text)) - at
        is_one = np.array([character in characters for character in text])
        seen = is_one & ((left & (distance < 0)) | (right & (distance > 0)))
        nearest = np.abs(distance[seen]).min() if seen.any() else 0
        return np.where(seen, np.exp(-steepness * (np.abs(distance) - nearest).clip(0)), 0.0)

    return head


def _neighbours(text: str, at: int) -> Floats:
    return np.exp(-np.abs(np.arange(len(text)) - at) / 2)


def _around_twelve(text: str, at: int) -> Floats:
    return np.exp(-np.abs(np.arange(len(text)) - 12) / 2)


def _second_before(text: str, at: int) -> Floats:
    before = [key for key in range(at) if text[key] in OPERATORS]
    found = np.zeros(len(text))
    if len(before) > 1:
        found[before[-2]] = 1
    return found


BLIND: dict[str, Head] = {
    "operators to the right, by exp(-distance/2)": _nearest(OPERATORS, steepness=0.5, left=False),
    "the nearest operator to the right": _nearest(OPERATORS, steepness=STEEP, left=False),
    "the nearest operator to the left": _nearest(OPERATORS, steepness=STEEP, right=False),
    "the nearest operator": _nearest(OPERATORS, steepness=STEEP),
    "division signs, by exp(-distance/2)": _nearest("/", steepness=0.5),
    "parentheses, by exp(-distance)": _nearest("()", steepness=1.0),
    "digits, by exp(-distance)": _nearest("0123456789", steepness=1.0),
    "neighbours": _neighbours,
    "positions around the twelfth": _around_twelve,
    "the second operator before": _second_before,
}


def blind(head: Head, text: str, rng: np.random.Generator) -> Floats:
    """Return the weights (query, key) of a structure-blind head; uniform without matching keys."""
    strengths = np.stack([head(text, at) for at in range(len(text))])
    strengths[strengths.sum(axis=1) == 0] = 1
    strengths *= np.exp(NOISE * rng.standard_normal(strengths.shape))
    return strengths / strengths.sum(axis=1, keepdims=True)


def follower(
    relation: Relation, expression: Expression, share: float, rng: np.random.Generator
) -> Floats:
    """Return the weights (query, key) of a head that follows a relation, or else its neighbours."""
    weights = blind(_neighbours, token_characters(expression.question), rng)
    for query, keys in relation(expression):
        weights[query] *= 1 - share
        weights[query, list(keys)] += share / len(keys)
    return weights / weights.sum(axis=1, keepdims=True)


def search(heads: Sequence[Sequence[Floats]], expressions: Sequence[Expression]) -> list[Ranking]:
    """Rank heads, given as weights (query, key) for each expression, by all relations."""
    weights = [np.stack(own)[None] for own in zip(*heads, strict=True)]
    attention = ModelAttention.of(weights, expressions)
    return list(rank(RELATIONS, attention, initial=dict.fromkeys(RELATIONS, 0.0), seed=0))


def questions(count: int, seed: int, module: str = MODULE) -> list[Expression]:
    """Return questions of a module, by default the paper's for its analyses."""
    drawn = generate(module, split="interpolate", count=count, seed=seed)
    return [expression for one in drawn if (expression := parse(one.question))]


def main() -> None:
    """Print how often each structure-blind head and each head that follows a relation is clear."""
    parser = argparse.ArgumentParser(description="error rates of the attention search")
    parser.add_argument("--count", type=int, default=128, help="questions in a search")
    parser.add_argument("--searches", type=int, default=8)
    options = parser.parse_args()
    planted = [(relation, share) for relation in RELATIONS for share in SHARES]
    wrong = {name: [] for name in BLIND}
    found = {key: [] for key in planted}
    for seed in range(options.searches):
        expressions = questions(options.count, seed)
        rng = np.random.default_rng(seed)
        heads = [
            [blind(head, token_characters(own.question), rng) for own in expressions]
            for head in BLIND.values()
        ]
        for ranking in search(heads, expressions):
            for one in ranking.heads:
                wrong[list(BLIND)[one.head]].append(one)
        heads = [
            [follower(RELATIONS[relation], own, share, rng) for own in expressions]
            for relation, share in planted
        ]
        for ranking in search(heads, expressions):
            for one in ranking.heads:
                if planted[one.head][0] == ranking.relation:
                    found[planted[one.head]].append(one)
    for name, own in wrong.items():
        greatest = 100 * max(one.margin for one in own)
        print(f"{name}: {sum(bool(one.is_clear) for one in own)} of {len(own)}, {greatest:.1f}")
    for (relation, share), own in found.items():
        margin = 100 * np.mean([one.margin for one in own])
        clear = sum(bool(one.is_clear) for one in own)
        print(f"{relation}, {share:.0%}: {clear} of {len(own)}, {margin:.1f}")
    for module in (MODULE, "arithmetic__mul_div_multiple"):
        having = [bool(RELATIONS[SKIPPING](own)) for own in questions(COUNTED, 0, module)]
        print(f"{SKIPPING}: in {np.mean(having):.0%} of {len(having)} questions of {module}")


if __name__ == "__main__":
    main()
