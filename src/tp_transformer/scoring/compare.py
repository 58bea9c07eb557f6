"""Comparison of results: with the paper (rows of Table 1), question by question, and over seeds.

A comparison on questions shows whether two models differ. To show that two recipes differ, several
seeds of each are needed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from tp_transformer.data.mathematics.modules import EXTRAPOLATE, INTERPOLATE
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.task import TRAIN, Task
from tp_transformer.errors import ResultsError
from tp_transformer.scoring.published import TABLE_1, Table1Row
from tp_transformer.scoring.results import GENERATED, Results, SplitScore
from tp_transformer.scoring.statistics import (
    Agreement,
    Interval,
    difference_interval,
    difference_test,
    holm,
    mcnemar_exact,
    welch,
)

PAPER, OURS = "paper", "measured"  # origins of rows
PUBLISHED_COUNT = 10_000  # questions of each module in the published test splits
HELD_OUT_UNKNOWN = "may include questions held out for validation: the run of the model is unknown"
SURE = 0.05  # significance level of Holm-adjusted p-values


@dataclass(frozen=True, kw_only=True)
class AverageCell:
    """An average over modules in Table 1."""

    accuracy: float
    interval: Interval | None = None  # absent in the paper
    above_95: int | None = None  # not counted for training
    n_modules: int | None = None  # absent in the paper, which has all
    n: int | None = None  # number of questions


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """A row of Table 1, from the paper or measured."""

    source: str
    name: str
    weights: str
    steps: int | None
    cells: dict[str, AverageCell]


def task_of(results: Sequence[Results]) -> Task:
    """The task of results, which must be the same; its modules are those of all of them."""
    task = results[0].task if results else MATHEMATICS
    for other in (result.task for result in results[1:]):
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


def rows(results: Sequence[Results]) -> list[ScoreRow]:
    """Return the rows of the paper as printed, if they are on this task, then ours."""
    paper = TABLE_1.values() if is_published(results) else []
    return [*map(_paper_row, paper), *map(_row, named_apart(results))]


def named_apart(results: Sequence[Results]) -> list[Results]:
    """Return the same results, with a number added to names that occur more than once."""
    counts, seen = Counter(result.name for result in results), Counter[str]()
    renamed = []
    for result in results:
        name = result.name
        if counts[name] > 1:
            seen[name] += 1
            name = f"{name} ({seen[name]})"
        renamed.append(replace(result, model={**result.model, "name": name}))
    return renamed


def module_names(results: Sequence[Results], split: str) -> list[str]:
    """Return the modules of a split for which any of the results has a score, in order."""
    scored = {
        name
        for result in results
        if split in result.splits
        for name in result.splits[split].modules
    }
    return [name for name in task_of(results).splits[split] if name in scored]


def coverage(task: Task, split: str, n_modules: int | None) -> str:
    """Return the number of modules of an average, as `3 of 56 modules`; empty if all."""
    total = len(task.splits[split])
    return "" if n_modules is None or n_modules >= total else f"{n_modules} of {total} modules"


def caveats(results: Sequence[Results]) -> list[str]:
    """Return what makes the results incomparable with the paper or with each other."""
    names: dict[str, list[str]] = {}  # of results by caveat
    task, published = task_of(results), is_published(results)
    for result in results:
        for name, split in result.splits.items():
            if limits := _limits(task, name, split, published):
                names.setdefault(f"{name} {limits}", []).append(result.name)
        if TRAIN in result.splits and result.held_out is None:
            names.setdefault(f"train {HELD_OUT_UNKNOWN}", []).append(result.name)
        if published and result.data.get("kind") == GENERATED:
            caveat = "the questions were generated, not the published ones"
            names.setdefault(caveat, []).append(result.name)
    lines = [f"{', '.join(those)}: {caveat}" for caveat, those in names.items()]
    for name in task.splits:
        scored = [result.splits[name] for result in results if name in result.splits]
        if len({frozenset(split.modules) for split in scored}) > 1:
            lines.append(f"{name}: the averages are not all over the same modules")
    return lines


def _limits(task: Task, name: str, split: SplitScore, published: bool) -> str:
    """Describe how a split differs from all of it, or from the published one; empty if not."""
    covered = coverage(task, name, len(split.modules))
    limits = [f"covers {covered}"] if covered else []
    counts = sorted({module.n for module in split.modules.values()})
    if published and name != TRAIN and counts != [PUBLISHED_COUNT]:
        some = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        limits.append(f"has {some} questions of each module, not {PUBLISHED_COUNT:,}")
    return " and ".join(limits)


def _paper_row(row: Table1Row) -> ScoreRow:
    cells = {
        INTERPOLATE: AverageCell(accuracy=row.interpolation, above_95=row.interpolation_above_95),
        EXTRAPOLATE: AverageCell(accuracy=row.extrapolation, above_95=row.extrapolation_above_95),
    }
    if row.train is not None:
        cells = {TRAIN: AverageCell(accuracy=row.train), **cells}
    return ScoreRow(source=PAPER, name=row.name, weights=row.weights, steps=row.steps, cells=cells)


def _row(results: Results) -> ScoreRow:
    cells = {
        name: AverageCell(
            accuracy=split.average[0],
            interval=split.average[1],
            above_95=None if name == TRAIN else split.above_95,
            n_modules=len(split.modules),
            n=split.n,
        )
        for name, split in results.splits.items()
    }
    n = results.model["n_parameters"]
    weights = f"{n / 1e6:.1f}M" if n >= 1e6 else f"{n / 1e3:.0f}k"
    steps = results.model["step"]
    return ScoreRow(source=OURS, name=results.name, weights=weights, steps=steps, cells=cells)


@dataclass(frozen=True, kw_only=True)
class ModulePair:
    """The comparison of two models on the same questions of a module."""

    agreement: Agreement
    p: float  # McNemar's exact test
    p_holm: float  # the same, Holm-adjusted over the modules

    @property
    def is_sure(self) -> bool:
        """Whether the difference is significant."""
        return self.p_holm < SURE


@dataclass(frozen=True, kw_only=True)
class SplitPair:
    """The comparison of two models on the same questions of a split."""

    split: str
    title: str  # of the split
    modules: dict[str, ModulePair]
    left_out: tuple[str, ...]  # modules whose questions differ between the two
    difference: float  # of the averages over modules, the first minus the second
    interval: Interval
    p: float  # of that difference, under equality
    p_holm: float  # the same, Holm-adjusted over all splits and results that are compared


def pairs(first: Results, others: Sequence[Results]) -> list[list[SplitPair]]:
    """Compare a result with each of the others, on the questions that both have.

    The p-values of all averages are adjusted together, because each comparison is a further test.
    """
    splits = task_of([first, *others]).splits
    of_others = [
        [pair for split in splits if (pair := _pair_split(first, other, split)) is not None]
        for other in others
    ]
    adjusted = iter(holm([pair.p for of_other in of_others for pair in of_other]))
    return [[replace(pair, p_holm=next(adjusted)) for pair in of_other] for of_other in of_others]


def _pair_split(first: Results, second: Results, split: str) -> SplitPair | None:
    if split not in first.splits or split not in second.splits:
        return None
    ours, theirs = first.splits[split].modules, second.splits[split].modules
    both = [name for name in ours if name in theirs and ours[name].sha256 == theirs[name].sha256]
    if not both:
        return None
    agreements = [Agreement.of(ours[name].verdicts, theirs[name].verdicts) for name in both]
    p_values = [mcnemar_exact(each.only_first, each.only_second) for each in agreements]
    modules = {
        name: ModulePair(agreement=agreement, p=p_module, p_holm=adjusted)
        for name, agreement, p_module, adjusted in zip(
            both, agreements, p_values, holm(p_values), strict=True
        )
    }
    p = difference_test(agreements)
    return SplitPair(
        split=split,
        title=first.task.title(split),
        modules=modules,
        left_out=tuple(sorted((ours.keys() | theirs.keys()) - set(both))),
        difference=sum(each.difference for each in agreements) / len(agreements),
        interval=difference_interval(agreements),
        p=p,
        p_holm=p,
    )


@dataclass(frozen=True)
class SeedGroup:
    """The results of one recipe, each of another seed; a single result is a group of one."""

    results: tuple[Results, ...]

    @property
    def name(self) -> str:
        """The name of the folder that the runs have in common, or else the names of all."""
        names = [result.name for result in self.results]
        folders = {name.rpartition("/")[0] for name in names}
        if len(names) > 1 and len(folders) == 1 and "" not in folders:
            return folders.pop()
        return ", ".join(names)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, as far as they are known."""
        models = [result.model for result in self.results]
        return tuple(model["seed"] for model in models if "seed" in model)

    def accuracies(self, split: str) -> list[float]:
        """Return the average accuracy of each seed on a split; none if a seed lacks the split."""
        if not all(split in result.splits for result in self.results):
            return []
        return [result.splits[split].average[0] for result in self.results]


@dataclass(frozen=True, kw_only=True)
class SeedScore:
    """The accuracy of a group on a split, averaged over modules, then over seeds."""

    split: str
    title: str  # of the split
    n_seeds: int
    mean: float
    spread: float  # the standard deviation over seeds
    range: Interval


@dataclass(frozen=True, kw_only=True)
class SeedTest:
    """The comparison of two groups on a split by Welch's t-test over seeds."""

    split: str
    title: str
    n_seeds: tuple[int, int]
    difference: float  # of the means, the first minus the second
    interval: Interval | None  # absent if there is no test
    p: float | None
    p_holm: float | None  # Holm-adjusted over all splits and groups that are compared


def seed_groups(results: Sequence[Results]) -> list[SeedGroup]:
    """Return the results by recipe, in order; a second result of a seed is a group of its own."""
    groups: dict[object, list[Results]] = {}
    for result in results:
        key: object = result.model.get("recipe_sha256", id(result))
        seeds = [other.model.get("seed") for other in groups.get(key, [])]
        is_second = result.model.get("seed") in seeds
        groups.setdefault(id(result) if is_second else key, []).append(result)
    return [SeedGroup(tuple(group)) for group in groups.values()]


def seed_scores(group: SeedGroup) -> list[SeedScore]:
    """Return the mean and the spread of a group of several seeds, for each split."""
    task = group.results[0].task
    accuracies = {split: group.accuracies(split) for split in task.splits}
    return [
        SeedScore(
            split=split,
            title=task.title(split),
            n_seeds=len(values),
            mean=fmean(values),
            spread=stdev(values),
            range=(min(values), max(values)),
        )
        for split, values in accuracies.items()
        if len(values) > 1
    ]


def seed_tests(first: SeedGroup, others: Sequence[SeedGroup]) -> list[list[SeedTest]]:
    """Compare a group with each of the others; nothing for a group of one seed."""
    of_others = [_seed_tests(first, other) for other in others]
    adjusted = iter(holm([test.p for tests in of_others for test in tests if test.p is not None]))
    return [
        [test if test.p is None else replace(test, p_holm=next(adjusted)) for test in tests]
        for tests in of_others
    ]


def _seed_tests(first: SeedGroup, second: SeedGroup) -> list[SeedTest]:
    task = first.results[0].task
    tests = []
    for split in task.splits:
        ours, theirs = first.accuracies(split), second.accuracies(split)
        if min(len(ours), len(theirs)) < 2:
            continue
        interval, p = welch(ours, theirs) or (None, None)
        tests.append(
            SeedTest(
                split=split,
                title=task.title(split),
                n_seeds=(len(ours), len(theirs)),
                difference=fmean(ours) - fmean(theirs),
                interval=interval,
                p=p,
                p_holm=p,
            )
        )
    return tests


def question_pairs(results: Sequence[Results]) -> list[tuple[Results, Results, list[SplitPair]]]:
    """Compare the first result with each other one, question by question.

    Only results of one seed are compared in this way; `seed_tests` compares the others.
    """
    task_of(results)  # raises if they cannot be compared
    first, *others = [
        group.results[0] if len(group.results) == 1 else None for group in seed_groups(results)
    ]
    if first is None:
        return []
    single = [other for other in others if other is not None]
    return [(first, *pair) for pair in zip(single, pairs(first, single), strict=True)]
