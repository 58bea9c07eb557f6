"""The results of an evaluation, and results.json.

The file has the counts and what follows from them (accuracies, intervals, averages). It has the
verdict on each question as a bit, so that two models can be compared question by question; the
`sha256` of a module tells whether the questions are the same.
"""

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.task import Task
from tp_transformer.errors import ResultsError
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


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong answer, with the kind of the mistake."""

    kind: str
    question: str
    answer: str
    predicted: str

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Mistake":
        """Return what `asdict` converted."""
        return cls(**{one.name: str(values[one.name]) for one in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class ModuleScore:
    """The score of a model on one module of one split."""

    verdicts: Bools  # whether each answer is correct, in the order of the rows
    loss: float  # negative log-likelihood per token, including end tokens
    n_symbols: int
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
            "n_symbols": self.n_symbols,
            "near_ties": self.near_ties,
            "wrong": self.wrong,
            "examples": [asdict(one) for one in self.examples],
            "questions_sha256": self.sha256,
            "verdicts": base64.b64encode(np.packbits(self.verdicts).tobytes()).decode(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ModuleScore":
        """Return what `to_json` converted."""
        packed = np.frombuffer(base64.b64decode(values["verdicts"], validate=True), np.uint8)
        n = _whole(values["n"], "n", least=1)
        if len(packed) != -(-n // 8):
            raise ValueError(f"{len(packed)} bytes of verdicts on {n} questions")
        found = cls(
            verdicts=np.unpackbits(packed, count=n).astype(bool),
            loss=float(values["loss"]),
            n_symbols=_whole(values["n_symbols"], "n_symbols", least=1),
            sha256=str(values["questions_sha256"]),
            near_ties=_whole(values["near_ties"], "near_ties"),
            wrong={str(kind): _whole(count, "wrong") for kind, count in values["wrong"].items()},
            examples=tuple(map(Mistake.from_json, values.get("examples", ()))),
        )
        if not math.isfinite(found.loss):
            raise ValueError(f"the loss is {found.loss}")
        if found.right != values["right"]:
            raise ValueError(f"{found.right} verdicts are right, not {values['right']}")
        return found


@dataclass(frozen=True)
class SplitScore:
    """The scores of a model on the modules of one split."""

    modules: dict[str, ModuleScore]

    @property
    def n(self) -> int:
        """The number of questions."""
        return sum(one.n for one in self.modules.values())

    @property
    def average(self) -> tuple[float, Interval]:
        """The accuracy averaged over modules, as in Table 1, and its interval."""
        return average_interval([(one.right, one.n) for one in self.modules.values()])

    @property
    def above_95(self) -> int:
        """The number of modules with an accuracy above 95%."""
        return sum(one.accuracy > HIGH for one in self.modules.values())

    @property
    def surely_above_95(self) -> int:
        """The number of modules whose whole interval is above 95%."""
        return sum(one.interval[0] > HIGH for one in self.modules.values())

    @property
    def loss(self) -> float:
        """The negative log-likelihood per token over all questions."""
        modules = self.modules.values()
        return sum(one.loss * one.n_symbols for one in modules) / sum(m.n_symbols for m in modules)

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
            "modules": {name: one.to_json() for name, one in self.modules.items()},
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
                "n": one.n,
                "right": one.right,
                "accuracy": one.accuracy,
                "low": one.interval[0],
                "high": one.interval[1],
                "loss": one.loss,
                "near_ties": one.near_ties,
            }
            for name, split in self.splits.items()
            for module, one in split.modules.items()
        ]

    def frame(self) -> "pd.DataFrame":
        """Return a row for each module of each split."""
        return frame(self.module_rows())

    def to_json(self) -> Values:
        """Return the values to write as JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            **vars(self),
            "splits": {name: split.to_json() for name, split in self.splits.items()},
        }

    def save(self, file: str | Path) -> None:
        """Write results.json atomically."""
        write_json(file, self.to_json())

    @classmethod
    def read(cls, file: str | Path) -> "Results":
        """Read results.json; raise if it is damaged or another kind of file."""
        try:
            values = json.loads(Path(file).read_text("utf-8"))
        except OSError as error:
            raise ResultsError(f"cannot read {file}: {error.strerror or error}") from error
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
        splits = {
            str(name): SplitScore(
                {
                    str(module): ModuleScore.from_json(one)
                    for module, one in split["modules"].items()
                }
            )
            for name, split in values["splits"].items()
        }
        if not splits:
            raise ValueError("there is no split")
        model = {**values["model"], "name": str(values["model"]["name"])}
        _whole(model["n_parameters"], "n_parameters")
        if model["step"] is not None:
            _whole(model["step"], "step")
        data, made = dict(values["data"]), dict(values["made"])
        if data.get("held_out") is not None:
            _whole(data["held_out"], "held_out")
        if made.get("diagnosis") is not None:
            _whole(made["diagnosis"]["n_out_of_time"], "n_out_of_time")
        decoding = values["decoding"]
        if decoding is not None:
            _whole(decoding["n"], "n")
            _whole(decoding["near_ties_among_them"], "near_ties_among_them")
            decoding = {**decoding, "other_verdict": list(decoding["other_verdict"])}
        found = cls(
            model=model,
            data=data,
            choice=dict(values["choice"]),
            made=made,
            splits=splits,
            near_ties=list(values["near_ties"]),
            decoding=decoding,
        )
        for name, split in splits.items():
            if name not in found.task.splits or not split.modules:
                raise ValueError(f"the split {name!r} is unknown or has no modules")
            for unknown in split.modules.keys() - set(found.task.splits[name]):
                raise ValueError(f"{name} has no module {unknown!r}")
        return found


def refuse_other_results(
    file: Path, sha256: str, precision: str, data: Values, choice: Values
) -> None:
    """Raise if a file has anything but results of this model on these questions."""
    if not file.exists():
        return
    try:
        found = Results.read(file)
    except ResultsError as error:
        raise ResultsError(f"{error}; --overwrite replaces it") from error
    reasons = []
    if found.model.get("sha256") != sha256:
        reasons.append(f"of another model ({found.name})")
    earlier = found.made.get("precision", "float32")
    if earlier != precision and "int8" in (earlier, precision):  # the only one with other verdicts
        reasons.append(f"in {earlier}, not {precision}")
    if found.data.get("sha256") != data["sha256"]:
        reasons.append(f"on other data ({found.data.get('name')})")
    for name, value in json.loads(json.dumps(choice)).items():  # JSON has no tuples
        if found.choice.get(name) != value:
            was = json.dumps(found.choice.get(name))
            reasons.append(f"with {name} {was}, not {json.dumps(value)}")
    if reasons:
        raise ResultsError(f"{file} has results {', '.join(reasons)}; --overwrite replaces them")


def _whole(value: Any, name: str, least: int = 0) -> int:
    """Return a count from a file; raise if it is not one."""
    if type(value) is not int or not least <= value < 2**63:
        raise ValueError(f"{name} is not a count")
    return value
