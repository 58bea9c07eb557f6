"""Results beside each other and beside the paper's: rows of Table 1, and question by question."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tp_transformer.data.mathematics.modules import EXTRAPOLATE, INTERPOLATE
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.task import TRAIN, Task
from tp_transformer.errors import ResultsError
from tp_transformer.published import TABLE_1
from tp_transformer.scoring.results import GENERATED, Results, SplitScore
from tp_transformer.scoring.statistics import (
    Agreement,
    Interval,
    difference_interval,
    difference_test,
    holm,
    mcnemar_exact,
)

PAPER, OURS = "paper", "measured"  # where a row comes from
PUBLISHED_COUNT = 10_000  # questions of each module in the published test splits
HELD_OUT_UNKNOWN = (
    "may include questions held out for validation: the model has no run on this data to tell"
)
SURE = 0.05  # a p-value below this, after Holm's correction, tells two models apart


@dataclass(frozen=True, kw_only=True)
class Cell:
    """An average over modules in Table 1, and what belongs to it."""

    accuracy: float
    interval: Interval | None = None  # the paper gives none
    above_95: int | None = None  # not counted for training
    n_modules: int | None = None  # over which it is; the paper's are over all
    n: int | None = None  # questions


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of Table 1, the paper's or ours."""

    source: str
    name: str
    weights: str
    steps: int | None
    cells: dict[str, Cell]


def task_of(results: Sequence[Results]) -> Task:
    """The task of results, which must be the same; its modules are those of all of them."""
    task = results[0].task if results else MATHEMATICS
    for other in (one.task for one in results[1:]):
        if other.name != task.name:
            raise ResultsError(f"results on {task.name} and on {other.name} cannot be compared")
        splits = {
            split: tuple(dict.fromkeys([*task.splits.get(split, ()), *other.splits.get(split, ())]))
            for split in {**task.splits, **other.splits}
        }
        task = replace(task, splits=splits)
    return task


def is_published(results: Sequence[Results]) -> bool:
    """Whether the paper has results on this task."""
    return task_of(results).name == MATHEMATICS.name


def rows(results: Sequence[Results]) -> list[Row]:
    """The paper's rows as printed, if they are on this task, then ours."""
    paper = _paper_rows() if is_published(results) else []
    return [*paper, *map(_row, named_apart(results))]


def named_apart(results: Sequence[Results]) -> list[Results]:
    """The same results, with a number added to names that occur more than once."""
    counts = Counter(one.name for one in results)
    seen: Counter[str] = Counter()
    found = []
    for one in results:
        name = one.name
        if counts[name] > 1:
            seen[name] += 1
            name = f"{name} ({seen[name]})"
        found.append(replace(one, model={**one.model, "name": name}))
    return found


def module_names(results: Sequence[Results], split: str) -> list[str]:
    """The modules of a split on which at least one of the results has a score, in their order."""
    asked = {name for one in results if split in one.splits for name in one.splits[split].modules}
    return [name for name in task_of(results).splits[split] if name in asked]


def coverage(task: Task, split: str, n_modules: int | None) -> str:
    """Over how many modules an average is, such as `3 of 56 modules`; empty if over all."""
    total = len(task.splits[split])
    return "" if n_modules is None or n_modules >= total else f"{n_modules} of {total} modules"


def caveats(results: Sequence[Results]) -> list[str]:
    """What keeps our rows from being comparable with the paper's, or with each other."""
    found: dict[str, list[str]] = {}  # of whom it is true
    task, published = task_of(results), is_published(results)
    for one in results:
        for name, split in one.splits.items():
            if limits := _limits(task, name, split, published):
                found.setdefault(f"{name} {limits}", []).append(one.name)
        if TRAIN in one.splits and one.held_out is None:
            found.setdefault(f"train {HELD_OUT_UNKNOWN}", []).append(one.name)
        if published and one.data.get("kind") == GENERATED:
            what = "the questions were generated, not the published ones"
            found.setdefault(what, []).append(one.name)
    lines = [f"{', '.join(names)}: {what}" for what, names in found.items()]
    for name in task.splits:
        sets = {frozenset(one.splits[name].modules) for one in results if name in one.splits}
        if len(sets) > 1:
            lines.append(f"{name}: the averages are not all over the same modules")
    return lines


def _limits(task: Task, name: str, split: SplitScore, published: bool) -> str:
    """How a split falls short of all of it, or of the published one; empty if it does not."""
    found = []
    if covered := coverage(task, name, len(split.modules)):
        found.append(f"covers {covered}")
    counts = sorted({one.n for one in split.modules.values()})
    if published and name != TRAIN and counts != [PUBLISHED_COUNT]:
        some = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        found.append(f"has {some} questions of each module, not {PUBLISHED_COUNT:,}")
    return " and ".join(found)


def _paper_rows() -> list[Row]:
    return [
        Row(
            source=PAPER,
            name=row.name,
            weights=row.weights,
            steps=row.steps,
            cells={
                **({TRAIN: Cell(accuracy=row.train)} if row.train is not None else {}),
                INTERPOLATE: Cell(accuracy=row.interpolation, above_95=row.interpolation_above_95),
                EXTRAPOLATE: Cell(accuracy=row.extrapolation, above_95=row.extrapolation_above_95),
            },
        )
        for row in TABLE_1.values()
    ]


def _row(results: Results) -> Row:
    cells = {}
    for name, split in results.splits.items():
        accuracy, interval = split.average
        above = None if name == TRAIN else split.above_95
        cells[name] = Cell(
            accuracy=accuracy,
            interval=interval,
            above_95=above,
            n_modules=len(split.modules),
            n=split.n,
        )
    n = results.model["n_parameters"]
    return Row(
        source=OURS,
        name=results.name,
        weights=f"{n / 1e6:.1f}M" if n >= 1e6 else f"{n / 1e3:.0f}k",
        steps=results.model["step"],
        cells=cells,
    )


@dataclass(frozen=True, kw_only=True)
class ModulePair:
    """Two models on the same questions of a module."""

    agreement: Agreement
    p: float  # McNemar's exact test
    p_holm: float  # the same, Holm-adjusted over the modules

    @property
    def is_sure(self) -> bool:
        """Whether one of the two is surely better."""
        return self.p_holm < SURE


@dataclass(frozen=True, kw_only=True)
class SplitPair:
    """Two models on the same questions of a split."""

    split: str
    title: str  # of the split
    modules: dict[str, ModulePair]
    left_out: tuple[str, ...]  # modules on which the two were not asked the same questions
    difference: float  # of the averages over modules, the first minus the second
    interval: Interval
    p: float  # of that difference, if the two were equal
    p_holm: float  # the same, Holm-adjusted over all splits and opponents that are compared


def pairs(first: Results, others: Sequence[Results]) -> list[list[SplitPair]]:
    """A result compared with each of the others, on the questions that both were asked.

    Every average that is compared is one more chance to find a difference that is none: the
    p-values of all of them are adjusted together.
    """
    splits = task_of([first, *others]).splits
    found = [
        [one for split in splits if (one := _pair_split(first, other, split)) is not None]
        for other in others
    ]
    adjusted = iter(holm([one.p for of_other in found for one in of_other]))
    return [[replace(one, p_holm=next(adjusted)) for one in of_other] for of_other in found]


def _pair_split(first: Results, second: Results, split: str) -> SplitPair | None:
    if split not in first.splits or split not in second.splits:
        return None
    ours, theirs = first.splits[split].modules, second.splits[split].modules
    both = [name for name in ours if name in theirs and ours[name].sha256 == theirs[name].sha256]
    if not both:
        return None
    found = {name: Agreement.of(ours[name].verdicts, theirs[name].verdicts) for name in both}
    agreements = list(found.values())
    p_values = [mcnemar_exact(one.only_first, one.only_second) for one in agreements]
    p = difference_test(agreements)
    return SplitPair(
        split=split,
        title=first.task.title(split),
        modules={
            name: ModulePair(agreement=one, p=p_module, p_holm=adjusted)
            for (name, one), p_module, adjusted in zip(
                found.items(), p_values, holm(p_values), strict=True
            )
        },
        left_out=tuple(sorted((ours.keys() | theirs.keys()) - set(both))),
        difference=sum(one.difference for one in agreements) / len(agreements),
        interval=difference_interval(agreements),
        p=p,
        p_holm=p,
    )
