"""The result of the attention analysis: maps, and the heads that follow each relation."""

from dataclasses import asdict, dataclass

from tp_transformer.foundation.statistics import FEWEST
from tp_transformer.interpret.attention.following import Following, Ranking
from tp_transformer.interpret.core.record import ENCODER, TITLES, Floats
from tp_transformer.interpret.core.result import Result, Values


@dataclass(frozen=True, kw_only=True)
class AttentionMap:
    """The attention of the chosen heads in one question."""

    question: str
    answer: str
    queries: str  # one character for each query position
    keys: str  # one character for each key position
    weights: Floats  # (head, query, key)


@dataclass(frozen=True, kw_only=True)
class AttentionResult(Result):
    """Maps of some questions, and for the encoder a ranking of heads for each relation."""

    where: str
    layer: int
    heads: tuple[int, ...]
    maps: tuple[AttentionMap, ...]
    are_given: bool  # whether the maps are of given questions, not of the sample
    shortest: AttentionMap  # of the shortest question
    rankings: tuple[Ranking, ...]  # of the encoder only

    @property
    def name(self) -> str:
        """The name of the JSON file."""
        return f"attention-{self.where}"

    @property
    def title(self) -> str:
        """The attention and the layer."""
        return f"{TITLES[self.where]}, layer {self.layer}"

    def summary(self) -> list[str]:
        """Return a line for each relation: the head that follows it, if any, and the baselines."""
        if self.where == ENCODER:
            return [_ranking_summary(ranking) for ranking in self.rankings]
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
    def source(self) -> str:
        """A sentence on the source of the questions, if it is not the sample."""
        return "These questions were given, not drawn. " if self.are_given else ""

    def values(self) -> Values:
        """Return the numbers."""
        return {
            "where": self.where,
            "layer": self.layer,
            "heads": list(self.heads),
            "are_given": self.are_given,
            "maps": [asdict(shown) for shown in self.maps],
            "shortest": asdict(self.shortest),
            "rankings": [asdict(ranking) for ranking in self.rankings],
        }


def _ranking_summary(ranking: Ranking) -> str:
    if not ranking.heads:
        return f"{ranking.relation}: no question has it."
    best = ranking.best
    head = f"{best.layer}.{best.head}"
    subject = f"The best candidate, head {head},"
    if best.interval is None:
        n = ranking.n_questions
        questions = "1 question has" if n == 1 else f"{n} questions have"
        found = f"{questions} it, too few to say whether a head follows it ({FEWEST} are needed)"
    elif not best.is_clear:
        found = "followed by no head beyond the baselines"
    else:
        found, subject = f"followed by head {head}", "It"
        if others := len(ranking.clear) - 1:
            found += f" and {others} more"
    return f"{ranking.relation}: {found}. {subject} {_numbers(best, ranking)}"


def _numbers(head: Following, ranking: Ranking) -> str:
    """Return the mass, the baselines and the margin, so that the numbers add up."""
    interval = ""
    if head.interval is not None:
        interval = " ({:z.1f} to {:z.1f})".format(*(100 * end for end in head.interval))
    skipped = "" if head.skipped is None else f", like skipped positions {head.skipped:.1%}"
    return (
        f"has {head.mass:.1%} of its attention on related positions; the largest baseline has "
        f"{head.baseline:.1%}: uniform {head.even:.1%}, on what others relate to "
        f"{head.exchanged:.1%}, by character and distance {head.by_text:.1%}{skipped}. The margin "
        f"is {100 * head.margin:z.1f} points{interval}; the threshold is "
        f"{100 * ranking.threshold:z.1f}, and untrained heads reach {100 * ranking.initial:z.1f}. "
        f"Its most attended position is a related one for {head.hits:.0%} of "
        f"{ranking.n_positions:,} positions."
    )
