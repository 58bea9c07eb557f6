"""The results of an evaluation, and results.json.

The file has the counts and what follows from them (accuracies, intervals, averages). It has the
verdict on each question as a bit, so that two models can be compared question by question; the
`sha256` of a module tells whether the questions are the same.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.task import Task
from tp_transformer.errors import ResultsError, reason
from tp_transformer.runtime.files import write_json
from tp_transformer.scoring.statistics import Interval, average_interval, wilson
from tp_transformer.scoring.verdict import Bools
from tp_transformer.table import frame, notebook_table

if TYPE_CHECKING:
    import pandas as pd

FORMAT, VERSION = "tp-transformer-results", 1
GENERATED = "generated"  # the kind of data that is not the published dataset
HIGH = 0.95  # the accuracy above which Table 1 counts modules

Values = dict[str, Any]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong answer, with the kind of the mistake."""

    kind: str
    question: str
    answer: str
    predicted: str


@dataclass(frozen=True, kw_only=True)
class ModuleScore:
    """The score of a model on one module of one split."""

    verdicts: Bools  # whether each answer is correct, in the order of the rows
    loss: float  # negative log-likelihood per token, including end tokens
    n_tokens: int
    sha256: str  # of the questions
    near_ties: int = 0
    wrong: dict[str, int] = field(default_factory=dict)  # number of diagnosed answers by kind
    examples: tuple[Mistake, ...] = ()  # the first of each kind

    @property
    def n(self) -> int:
        """The number of questions."""
        return len(self.verdicts)

    @property
    def right(self) -> int:
        """The number of correct answers."""
        return int(self.verdicts.sum())

    @property
    def accuracy(self) -> float:
        """The share of correct answers."""
        return self.right / self.n

    @property
    def interval(self) -> Interval:
        """The 95% confidence interval of the accuracy."""
        return wilson(self.right, self.n)

    def to_json(self) -> Values:
        """Return the values to write as JSON."""
        return {
            "n": self.n,
            "right": self.right,
            "accuracy": self.accuracy,
            "interval": self.interval,
            "loss": self.loss,
            "n_symbols": self.n_tokens,
            "near_ties": self.near_ties,
            "wrong": self.wrong,
            "examples": self.examples,
            "questions_sha256": self.sha256,
            "verdicts": np.packbits(self.verdicts).tobytes(),
        }


@dataclass(frozen=True)
class SplitScore:
    """The scores of a model on the modules of one split."""

    modules: dict[str, ModuleScore]

    @property
    def n(self) -> int:
        """The number of questions."""
        return sum(score.n for score in self.modules.values())

    @property
    def average(self) -> tuple[float, Interval]:
        """The accuracy averaged over modules, as in Table 1, and its interval."""
        return average_interval([(score.right, score.n) for score in self.modules.values()])

    @property
    def above_95(self) -> int:
        """The number of modules with an accuracy above 95%."""
        return sum(score.accuracy > HIGH for score in self.modules.values())

    @property
    def surely_above_95(self) -> int:
        """The number of modules whose whole interval is above 95%."""
        return sum(score.interval[0] > HIGH for score in self.modules.values())

    @property
    def loss(self) -> float:
        """The negative log-likelihood per token over all questions."""
        scores = self.modules.values()
        total = sum(score.loss * score.n_tokens for score in scores)
        return total / sum(score.n_tokens for score in scores)

    def to_json(self) -> Values:
        """Return the values to write as JSON."""
        average, interval = self.average
        return {
            "n": self.n,
            "n_modules": len(self.modules),
            "average": average,
            "interval": interval,
            "above_95": self.above_95,
            "surely_above_95": self.surely_above_95,
            "loss": self.loss,
            "modules": {name: score.to_json() for name, score in self.modules.items()},
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Results:
    """The results of an evaluation, with the model, the data and the environment."""

    model: Values  # name, config, n_parameters, step, sha256
    data: Values  # name, kind, task, sha256 of each split, number of held-out questions
    choice: Values  # fields of `Choice`
    made: Values  # time, device, versions, precision
    splits: dict[str, SplitScore]
    near_ties: list[Values]  # answers with a margin near 0
    decoding: Values | None = None  # the comparison with greedy decoding, if requested

    @property
    def task(self) -> Task:
        """The task of the questions; older results do not record it."""
        return Task.from_json(self.data["task"]) if "task" in self.data else MATHEMATICS

    @property
    def held_out(self) -> int | None:
        """The number of held-out training questions, which are excluded; None if unknown."""
        return self.data.get("held_out")

    @property
    def name(self) -> str:
        """The name of the model for tables, without line breaks and unprintable characters."""
        printable = (x if x.isprintable() else " " for x in str(self.model["name"]))
        return " ".join("".join(printable).split()) or "?"

    def __repr__(self) -> str:
        averages = "; ".join(
            f"{name} {split.average[0]:.1%} of {split.n:,} questions"
            for name, split in self.splits.items()
        )
        return f"Results({self.name!r}: {averages})"

    def _repr_html_(self) -> str:
        rows = [
            (
                self.task.title(name),
                f"{average:.2%}",
                f"{low:.1%} to {high:.1%}",
                len(split.modules),
                f"{split.n:,}",
                f"{split.loss:.3f}",
            )
            for name, split in self.splits.items()
            for average, (low, high) in [split.average]
        ]
        heads = ("average over modules", "correct", "95% interval", "modules", "questions", "loss")
        return notebook_table(f"Results of {self.name}", heads, rows)

    def module_rows(self) -> list[Values]:
        """Return the numbers of each module of each split."""
        return [
            {
                "model": self.name,
                "split": name,
                "module": module,
                "n": score.n,
                "right": score.right,
                "accuracy": score.accuracy,
                "low": score.interval[0],
                "high": score.interval[1],
                "loss": score.loss,
                "near_ties": score.near_ties,
            }
            for name, split in self.splits.items()
            for module, score in split.modules.items()
        ]

    def frame(self) -> "pd.DataFrame":
        """Return a row for each module of each split."""
        return frame(self.module_rows())

    def to_json(self) -> Values:
        """Return the values to write as JSON."""
        splits = {name: split.to_json() for name, split in self.splits.items()}
        values = {"format": FORMAT, "version": VERSION, **vars(self), "splits": splits}
        plain: Values = msgspec.to_builtins(values)
        return plain

    def save(self, file: str | Path) -> None:
        """Write results.json atomically."""
        write_json(file, self.to_json())

    @classmethod
    def read(cls, file: str | Path) -> "Results":
        """Read results.json; raise if it is damaged or another kind of file."""
        try:
            values = msgspec.json.decode(Path(file).read_bytes())
        except OSError as error:
            raise ResultsError(f"cannot read {file}: {reason(error)}") from error
        except (ValueError, RecursionError) as error:
            raise ResultsError(f"{file} is damaged or not JSON: {error}") from error
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ResultsError(f"{file} is not a results file of `tpt evaluate`")
        if values.get("version") != VERSION:
            raise ResultsError(
                f"{file} has results of version {values.get('version')!r:.20}, not {VERSION}; "
                "evaluate again"
            )
        try:
            return cls.from_json(values)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise ResultsError(f"{file} is damaged: {error!r:.300}") from error

    @classmethod
    def from_json(cls, values: Values) -> "Results":
        """Return what `to_json` converted."""
        model, made, decoding = values["model"], values["made"], values["decoding"]
        optional = [model["step"], values["data"].get("held_out")]
        counts = [model["n_parameters"], *(count for count in optional if count is not None)]
        if made.get("diagnosis") is not None:
            counts.append(made["diagnosis"]["n_out_of_time"])
        if decoding is not None:
            counts += [decoding["n"], decoding["near_ties_among_them"]]
            msgspec.convert(decoding["other_verdict"], list[Any])
        msgspec.convert(counts, list[Count])
        splits = {
            name: msgspec.convert(split["modules"], dict[str, _ModuleRecord])
            for name, split in values["splits"].items()
        }
        results = cls(
            model={**model, "name": str(model["name"])},
            data=values["data"],
            choice=dict(values["choice"]),
            made=made,
            splits={
                name: SplitScore({module: record.score() for module, record in records.items()})
                for name, records in splits.items()
            },
            near_ties=list(values["near_ties"]),
            decoding=decoding,
        )
        if not results.splits:
            raise ValueError("there is no split")
        for name, split in results.splits.items():
            if name not in results.task.splits or not split.modules:
                raise ValueError(f"the split {name!r} is unknown or has no modules")
            for unknown in split.modules.keys() - set(results.task.splits[name]):
                raise ValueError(f"{name} has no module {unknown!r}")
        return results


class _ModuleRecord(msgspec.Struct):
    """The fields of a module in results.json from which the others follow."""

    n: PositiveCount
    right: Count
    loss: float
    n_symbols: PositiveCount
    questions_sha256: str
    verdicts: bytes
    near_ties: Count = 0
    wrong: dict[str, Count] = {}
    examples: tuple[Mistake, ...] = ()

    def score(self) -> ModuleScore:
        """Return the score of the module; raise a ValueError if the fields do not fit."""
        packed = np.frombuffer(self.verdicts, np.uint8)
        if len(packed) != -(-self.n // 8):
            raise ValueError(f"{len(packed)} bytes of verdicts on {self.n} questions")
        score = ModuleScore(
            verdicts=np.unpackbits(packed, count=self.n).astype(bool),
            loss=self.loss,
            n_tokens=self.n_symbols,
            sha256=self.questions_sha256,
            near_ties=self.near_ties,
            wrong=self.wrong,
            examples=self.examples,
        )
        if score.right != self.right:
            raise ValueError(f"{score.right} verdicts are right, not {self.right}")
        return score


def check_replaced_results(
    file: Path, sha256: str, precision: str, data: Values, choice: Values
) -> None:
    """Raise if a file has anything but results of this model on these questions."""
    if not file.exists():
        return
    try:
        earlier = Results.read(file)
    except ResultsError as error:
        raise ResultsError(f"{error}; --overwrite replaces it") from error
    reasons = []
    if earlier.model.get("sha256") != sha256:
        reasons.append(f"of another model ({earlier.name})")
    precisions = earlier.made.get("precision", "float32"), precision
    if "int8" in precisions and precisions[0] != precision:  # the only one with other verdicts
        reasons.append(f"in {precisions[0]}, not {precision}")
    if earlier.data.get("sha256") != data["sha256"]:
        reasons.append(f"on other data ({earlier.data.get('name')})")
    for name, value in json.loads(json.dumps(choice)).items():  # JSON has no tuples
        if earlier.choice.get(name) != value:
            was = json.dumps(earlier.choice.get(name))
            reasons.append(f"with {name} {was}, not {json.dumps(value)}")
    if reasons:
        raise ResultsError(f"{file} has results {', '.join(reasons)}; --overwrite replaces them")
