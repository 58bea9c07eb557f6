"""The verb of the binding bench."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tp_transformer.ranges import Seed, Workers
from tp_transformer.verbs.verb import Verb


@dataclass(frozen=True, kw_only=True)
class Bench(Verb):
    """Train several bindings on the same samples at one budget, and compare them.

    Attributes:
        out: a folder for all of it; the same command resumes what is missing there
        tasks: what to train on: scan, scan-length, scan-add-jump, lookup, recall, quotients,
            mathematics-subset
        bindings: names of bindings, with fields of the model as in sigmoid+per_head=true;
            none-matched is a plain Transformer with the parameters of hadamard, tp-transformer
            is hadamard with a bound embedding too
        seeds: train once with each of these seeds
        budget: samples that each run trains on, such as 64000, 64k or 1.5M; by default each task
            has its own
        reference: the binding that the others are compared with; by default none, or else the
            first
        processes: the number of runs at a time, each with one thread; by default one per core
        tabulate: train nothing, and tabulate the runs that are done
    """

    resumes = True
    out: Path
    tasks: tuple[str, ...] = ("scan", "lookup", "mathematics-subset")
    bindings: tuple[str, ...] = (
        *("none", "none-matched", "constant", "hadamard"),
        *("residual", "sigmoid", "silu", "dictionary"),
    )
    seeds: tuple[Seed, ...] = (0, 1, 2)
    budget: str | None = None
    reference: str | None = None
    processes: Workers | None = None
    tabulate: bool = False

    def __call__(self) -> None:
        from rich.console import Console

        from tp_transformer.report.terminal import written_line
        from tp_transformer.runtime.processes import workers
        from tp_transformer.runtime.progress import progress
        from tp_transformer.runtime.provenance import command_line
        from tp_transformer.study.bench.document import render, save
        from tp_transformer.study.bench.plan import BenchPlan, samples_of
        from tp_transformer.study.bench.run import bench, tabulated

        plan = BenchPlan(
            out=self.out,
            tasks=self.tasks,
            variants=self.bindings,
            seeds=self.seeds,
            budget=None if self.budget is None else samples_of(self.budget),
            reference=self.reference,
        )
        if self.tabulate:
            table = tabulated(plan)
        else:
            table = bench(plan, workers(self.processes), workers(1), progress)
        made = {**table.made, "command": command_line("bench", self)}
        table = replace(table, made=made)
        render(table, Console(highlight=False))
        print(written_line(save(table, self.out)), file=sys.stderr)
