"""Verbs that combine several runs: the bench of bindings, the reproduction, bundling."""

import sys
from dataclasses import field, replace
from pathlib import Path
from typing import Literal

from tp_transformer.ranges import Device, Seed, Workers
from tp_transformer.runtime.memory import keep_freed_memory
from tp_transformer.runtime.progress import progress
from tp_transformer.verbs.verb import Verb, register_verb


@register_verb("bench")
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
        from tp_transformer.runtime.provenance import command_line
        from tp_transformer.study.bench import BenchPlan, bench, samples_of, tabulated
        from tp_transformer.study.bench_table import render, save

        plan = BenchPlan(
            out=self.out,
            tasks=self.tasks,
            variants=self.bindings,
            seeds=self.seeds,
            budget=None if self.budget is None else samples_of(self.budget),
            reference=self.reference,
        )
        table = tabulated(plan) if self.tabulate else bench(plan, self.processes)
        environment = {**table.made, "command": command_line("bench", self)}
        table = replace(table, made=environment)
        render(table, Console(highlight=False))
        print(written_line(save(table, self.out)), file=sys.stderr)


@register_verb("reproduce")
class Reproduce(Verb):
    """Train, score, interpret and report the rows of Table 1 at a scale that fits the machine.

    Attributes:
        scale: minutes, hour and overnight are for two cores, paper is for GPUs
        out: a folder for all of it; the same command resumes what is missing there
        data: a store of questions to use in place of generated ones; required for paper
        dry_run: print the runs, time, memory and disk space, measured for a few seconds, and for
            paper the command lines for GPUs; write nothing
    """

    resumes = True
    scale: Literal["minutes", "hour", "overnight", "paper"]
    out: Path
    data: Path | None = None
    dry_run: bool = False

    def __call__(self) -> None:
        from tp_transformer.study.reproduce import Reproduction, reproduce
        from tp_transformer.study.reproduction_plan import plan_lines
        from tp_transformer.study.scales import SCALES

        keep_freed_memory()
        work = Reproduction(scale=SCALES[self.scale], out=self.out, data=self.data)
        if self.dry_run:
            for line in plan_lines(work):
                print(line, flush=True)
        else:
            reproduce(work)


@register_verb("bundle")
class Bundle(Verb):
    """Make the model of a run the default of the package: weights, card and scores.

    Attributes:
        run: the run, whose best model is taken, or a checkpoint of it
        twin: a second run, whose model is bundled for comparison
        data: the store with the test questions; by default that of the run
        out: a folder to write to, instead of the one in the package
        device: the device to score on
    """

    run: Path = field(kw_only=False)
    twin: Path | None = None
    data: Path | None = None
    out: Path | None = None
    device: Device = "auto"

    def __call__(self) -> None:
        from tp_transformer.report.cards import bundled_lines
        from tp_transformer.study.bundle import bundle

        keep_freed_memory()
        folder = bundle(
            self.run,
            twin=self.twin,
            data=self.data,
            out=self.out,
            device=self.device,
            show=progress,
        )
        print(*bundled_lines(folder), sep="\n")
