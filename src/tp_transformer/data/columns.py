"""The names of the columns of a table of pairs, which are options of `tpt data prepare`."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The names of the columns of a table of pairs.

    Attributes:
        question: the column of questions
        answer: the column of answers
        split: the column of splits; it may be absent
        group: the column of groups, which are scored separately; it may be absent
    """

    question: str = field(default="question", metadata={"flag": "--question-column"})
    answer: str = field(default="answer", metadata={"flag": "--answer-column"})
    split: str = field(default="split", metadata={"flag": "--split-column"})
    group: str = field(default="group", metadata={"flag": "--group-column"})
