"""The options of `tpt data prepare` for pairs of your own; quick to import."""

from dataclasses import dataclass
from typing import Literal

from tp_transformer.errors import SettingsError

Tokenisation = Literal["characters", "words"]
SHARES = {"train": 0.9, "test": 0.1}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The names of the columns of a table of pairs.

    Attributes:
        question: the column of questions
        answer: the column of answers
        split: the column of splits; it may be absent
        group: the column of groups, which are scored separately; it may be absent
    """

    question: str = "question"
    answer: str = "answer"
    split: str = "split"
    group: str = "group"


def split_shares(text: str) -> dict[str, float]:
    """Parse shares of splits, such as `train=0.9,test=0.1`."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            shares[name.strip()] = -1.0
    if not all(0 < share <= 1 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
        raise SettingsError(
            "splits must be shares above 0 with a sum of 1, such as train=0.9,test=0.1, "
            f"not {text!r}"
        )
    return shares
