"""The result of the attention analysis: maps, and the heads that follow each relation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tp_transformer.foundation.figures import TOKENS
from tp_transformer.foundation.statistics import FEWEST
from tp_transformer.interpret.attention.following import Ranking
from tp_transformer.interpret.core import structure
from tp_transformer.interpret.core.record import ENCODER, TITLES, Activations
from tp_transformer.interpret.core.result import Result, ResultTable, Values


@dataclass(frozen=True, kw_only=True)
class AttentionMap:
    """The attention of the chosen heads in one question."""

    question: str
    answer: str
    queries: Sequence[str]  # the character or word at each query position
    keys: Sequence[str]  # the character or word at each key position
    weights: Activations  # (head, query, key)


@dataclass(frozen=True, kw_only=True)
class AttentionResult(Result):
    """Maps of some questions, and for the encoder a ranking of heads for each relation."""

    where: str
    layer: int
    heads: tuple[int, ...]
    maps: tuple[AttentionMap, ...]
    are_given: bool  # whether the maps are of given questions, not of the sample
    shortest: AttentionMap  # of the shortest question
    rankings: tuple[Ranking, ...]  # of the encoder only, between characters
    is_words: bool = False  # whether tokens are words

    @property
    def name(self) -> str:
        """The name of the JSON file."""
        return f"attention-{self.where}"

    @property
    def title(self) -> str:
        """The attention and the layer."""
        return f"{TITLES[self.where]}, layer {self.layer}"

    def summary(self) -> list[str]:
        """Return the relations that heads follow, those that none follows, and the rest."""
        if self.where == ENCODER and self.is_words:
            return [
                f"{self.title}: figures only, because relations are between characters of "
                "expressions, and the tokens of this model are words."
            ]
        if self.where == ENCODER:
            return _findings(self.rankings)
        return [
            f"{self.title}: figures only, because relations are between positions of the question. "
            f"{self.inputs}"
        ]

    @property
    def inputs(self) -> str:
        """A sentence on the tokens that attend in the decoder."""
        answer = "the model's own answer" if self.are_given else "the right answer, which is given"
        return f"The decoder reads {answer}; at each token it predicts the next."

    @property
    def caption(self) -> str:
        """The tokens of the maps, and the model and the questions that they are of."""
        if not self.are_given:
            return f"{TOKENS} {self.context.caption}"
        n = len(self.maps)
        origin = "a given question" if n == 1 else f"{n} given questions"
        sample = replace(self.context.sample, origin=origin)
        return f"{TOKENS} {replace(self.context, sample=sample).caption}"

    def tables(self) -> list[ResultTable]:
        """Return the margin of the best head for each relation that is there, and its baselines."""
        rows = tuple(_row(ranking) for ranking in self.rankings if ranking.heads)
        table = ResultTable(
            title="The best head for each relation: its attention on related positions, in %",
            columns=("relation", "head", "mass", "baseline", "margin", "95%", "threshold", "hits"),
            rows=rows,
            note="mass: the attention on related positions. baseline: the largest of uniform "
            "attention, on what others relate to (others), by character and distance (text) and "
            "like skipped positions (skipped). margin: the mass minus the baseline; its interval "
            "must lie above the threshold. hits: positions whose most attended position is a "
            "related one.",
        )
        return [table] if rows else []

    def values(self) -> Values:
        """Return the numbers."""
        values = super().values()
        del values["is_words"]
        return values


def _findings(rankings: tuple[Ranking, ...]) -> list[str]:
    """Return a line for each kind of finding, with the relations that it is about.

    Relations of expressions are not listed as absent if there is no expression, and others if there
    is no other structure.
    """
    followed, unclear, few, absent = [], [], [], []
    for ranking in rankings:
        name = ranking.relation
        if not ranking.heads:
            absent.append(name)
            continue
        best = ranking.best
        head = f"{best.layer}.{best.head}"
        if best.interval is None:
            few.append(f"{name} ({ranking.n_questions})")
        elif best.is_clear:
            more = f" and {others} more" if (others := len(ranking.clear) - 1) else ""
            followed.append(f"{name} (head {head}{more})")
        else:
            unclear.append(name)
    if rankings and len(absent) == len(rankings):
        return [
            f"No question has any of the {len(absent)} relations, which are of expressions, lists, "
            "digits and polynomials."
        ]
    present = {ranking.relation in structure.RELATIONS for ranking in rankings if ranking.heads}
    absent = [name for name in absent if (name in structure.RELATIONS) in present]
    kinds = {
        "Followed": followed,
        "Followed by no head beyond the baselines": unclear,
        f"In too few questions to say whether a head follows it ({FEWEST} are needed)": few,
        "In no question": absent,
    }
    return [f"{kind}: {'; '.join(names)}." for kind, names in kinds.items() if names]


def _row(ranking: Ranking) -> tuple[str, ...]:
    """Return the mass, the baselines and the margin of the best head in percent."""
    best = ranking.best
    baselines = {
        "uniform": best.even,
        "others": best.exchanged,
        "text": best.by_text,
        "skipped": best.skipped or 0.0,
    }
    largest = max(baselines, key=lambda name: baselines[name])
    interval = best.interval and "{:z.1f} to {:z.1f}".format(*(100 * end for end in best.interval))
    return (
        ranking.relation,
        f"{best.layer}.{best.head}",
        f"{100 * best.mass:.1f}",
        f"{100 * best.baseline:.1f} {largest}",
        f"{100 * best.margin:z.1f}",
        interval or "-",
        f"{100 * ranking.threshold:z.1f}",
        f"{100 * best.hits:.0f}",
    )
