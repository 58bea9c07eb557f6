"""Results of runs that differ only in their seed: mean, spread, and tests over seeds.

A comparison on questions shows whether two models differ. To show that two recipes differ, several
seeds of each are needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from tp_transformer.scoring.compare import SplitPair, pairs, task_of
from tp_transformer.scoring.results import Results
from tp_transformer.scoring.statistics import Interval, holm, welch


@dataclass(frozen=True)
class SeedGroup:
    """The results of one recipe, each of another seed; a single result is a group of one."""

    results: tuple[Results, ...]

    @property
    def name(self) -> str:
        """The name of the folder that the runs have in common, or else the names of all."""
        names = [one.name for one in self.results]
        folders = {name.rpartition("/")[0] for name in names}
        if len(names) > 1 and len(folders) == 1 and "" not in folders:
            return folders.pop()
        return ", ".join(names)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, as far as they are known."""
        return tuple(one.model["seed"] for one in self.results if "seed" in one.model)

    def accuracies(self, split: str) -> list[float]:
        """Return the average accuracy of each seed on a split; none if a seed lacks the split."""
        if not all(split in one.splits for one in self.results):
            return []
        return [one.splits[split].average[0] for one in self.results]


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
    found: dict[object, list[Results]] = {}
    for one in results:
        key: object = one.model.get("recipe_sha256", id(one))
        seeds = [other.model.get("seed") for other in found.get(key, [])]
        found.setdefault(id(one) if one.model.get("seed") in seeds else key, []).append(one)
    return [SeedGroup(tuple(group)) for group in found.values()]


def seed_scores(group: SeedGroup) -> list[SeedScore]:
    """Return the mean and the spread of a group of several seeds, for each split."""
    task = group.results[0].task
    found = []
    for split in task.splits:
        values = group.accuracies(split)
        if len(values) > 1:
            found.append(
                SeedScore(
                    split=split,
                    title=task.title(split),
                    n_seeds=len(values),
                    mean=fmean(values),
                    spread=stdev(values),
                    range=(min(values), max(values)),
                )
            )
    return found


def seed_tests(first: SeedGroup, others: Sequence[SeedGroup]) -> list[list[SeedTest]]:
    """Compare a group with each of the others; nothing for a group of one seed."""
    found = [_seed_tests(first, other) for other in others]
    p_values = [one.p for tests in found for one in tests if one.p is not None]
    adjusted = iter(holm(p_values))
    return [
        [one if one.p is None else replace(one, p_holm=next(adjusted)) for one in tests]
        for tests in found
    ]


def _seed_tests(first: SeedGroup, second: SeedGroup) -> list[SeedTest]:
    task = first.results[0].task
    found = []
    for split in task.splits:
        ours, theirs = first.accuracies(split), second.accuracies(split)
        if min(len(ours), len(theirs)) < 2:
            continue
        interval, p = welch(ours, theirs) or (None, None)
        found.append(
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
    return found


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
    return [
        (first, other, found) for other, found in zip(single, pairs(first, single), strict=True)
    ]
