"""The verb of the reproduction."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tp_transformer.verbs.verb import Verb


@dataclass(frozen=True, kw_only=True)
class Reproduce(Verb):
    """Train, score, interpret and report the rows of Table 1 at a scale that fits the machine.

    Attributes:
        scale: minutes, hour and overnight are for two cores, paper is for GPUs
        out: a folder for all of it; the same command resumes what is missing there
        data: a store of questions to use in place of generated ones; required for paper
        dry_run: print the runs, time, memory and disk space, measured for ten seconds, and for
            paper the command lines for GPUs; write nothing
    """

    resumes = True
    scale: Literal["minutes", "hour", "overnight", "paper"]
    out: Path
    data: Path | None = None
    dry_run: bool = False

    def __call__(self) -> None:
        from tp_transformer.runtime.memory import keep_freed_memory
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
