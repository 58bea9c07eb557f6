"""What was found where heads look: maps, and the heads that follow each relation."""

from dataclasses import asdict, dataclass

from tp_transformer.interpret.following import Following, Ranking
from tp_transformer.interpret.outcome import Values
from tp_transformer.interpret.record import ENCODER, TITLES, Floats
from tp_transformer.scoring.statistics import FEWEST

READ = "What attends is what the decoder has read: {}. At each symbol it predicts the next."


@dataclass(frozen=True, kw_only=True)
class Map:
    """The attention of chosen heads for one question."""

    question: str
    answer: str
    queries: str  # a character for each position that attends
    keys: str  # and for each that is attended to
    weights: Floats  # (head, query, key)


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """Maps of some questions, and in the encoder the heads that follow each relation."""

    where: str
    layer: int
    heads: tuple[int, ...]
    maps: tuple[Map, ...]
    are_given: bool  # whether they are of questions that were given; else of the sample
    shortest: Map  # of the sample's shortest question
    rankings: tuple[Ranking, ...]  # empty but for the encoder
    seed: int

    @property
    def title(self) -> str:
        """Which attention it is."""
        return f"{TITLES[self.where]}, layer {self.layer}"

    @property
    def meaning(self) -> list[str]:
        """Which head follows each relation, if any, beside the baselines."""
        if self.where == ENCODER:
            return [_meaning_of(ranking) for ranking in self.rankings]
        return [f"{self.title}: in figures only, as relations are of the encoder. {self.read}"]

    @property
    def read(self) -> str:
        """What the symbols are that attend in the decoder."""
        own = "the model's own answer" if self.are_given else "the right answer, which it is given"
        return READ.format(own)

    @property
    def source(self) -> str:
        """A sentence on where the questions come from, if not from the sample."""
        return "These questions were given, not drawn. " if self.are_given else ""

    def to_values(self) -> Values:
        """All of it as plain values."""
        return {
            "seed": self.seed,
            "meaning": self.meaning,
            "where": self.where,
            "layer": self.layer,
            "heads": list(self.heads),
            "are_given": self.are_given,
            "maps": [asdict(one) for one in self.maps],
            "shortest": asdict(self.shortest),
            "rankings": [asdict(one) for one in self.rankings],
        }


def _meaning_of(ranking: Ranking) -> str:
    if not ranking.heads:
        return f"{ranking.relation}: no question has it."
    best = ranking.best
    head = f"{best.layer}.{best.head}"
    subject = f"The best candidate, head {head},"
    if best.interval is None:
        n = ranking.n_questions
        questions = "1 question has" if n == 1 else f"{n} questions have"
        said = f"{questions} it, too few to say whether a head favours it ({FEWEST} are needed)"
    elif not best.is_clear:
        said = "favoured by no head beyond the baselines"
    else:
        said, subject = f"favoured by head {head}", "It"
        if others := len(ranking.clear) - 1:
            said += f" and {others} more"
    return f"{ranking.relation}: {said}. {subject} {_numbers(best, ranking)}"


def _numbers(one: Following, ranking: Ranking) -> str:
    """The mass, the baselines and what is left, so that the numbers add up."""
    interval = ""
    if one.interval is not None:
        interval = " ({:z.1f} to {:z.1f})".format(*(100 * end for end in one.interval))
    skipped = "" if one.skipped is None else f", like what is to be skipped {one.skipped:.1%}"
    return (
        f"has {one.mass:.1%} of its attention on what is related, where the largest "
        f"baseline has {one.baseline:.1%}: evenly {one.even:.1%}, on what others relate to "
        f"{one.exchanged:.1%}, by character and distance {one.by_text:.1%}{skipped}. That is "
        f"{100 * one.margin:z.1f} points more{interval}; to be clear it must be more than "
        f"{100 * ranking.to_exceed:z.1f}, with initial weights it is up to "
        f"{100 * ranking.initial:z.1f}. Its most attended is a related one in {one.hits:.0%} of "
        f"{ranking.n_positions:,} positions."
    )
