"""Keep the models of runs with several seeds in the repository, without the rest of the runs.

    python experiments/keep_models.py runs/tp runs/plain runs/matched --out models

Each argument is a folder of `tpt train --seeds`. The best model of each finished seed is written to
`models/tp/seed-0` and so on, with its training (`training.json`). A model that is there stays. The
weights are rounded to bfloat16 and stored in float32: git compresses them to less than half, and
`tpt` reads them as any model.
"""

import argparse
import json
from pathlib import Path

import msgspec

import tp_transformer as tpt
from tp_transformer import settings
from tp_transformer.model.checkpoint import step_of
from tp_transformer.runtime.run_folder import CONFIG, LAST, seed_runs
from tp_transformer.study.bundle import rounded
from tp_transformer.training.history import HISTORY, history_of


def keep(run: Path, folder: Path) -> None:
    """Write the best model of a run, and its training, to a folder."""
    steps = settings.read(run / CONFIG)["training"]["steps"]
    if (step_of(run / LAST) or 0) < steps:
        print(f"{run}: not finished")
        return
    rounded(tpt.load(run)).save(folder)
    history = history_of(run)
    assert history is not None  # noqa: S101, every run has one
    text = json.dumps(msgspec.to_builtins(history), indent=1, ensure_ascii=False) + "\n"
    (folder / HISTORY).write_text(text, "utf-8")
    print(folder)


def main() -> None:
    """Keep the models that are not kept yet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of tpt train --seeds")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the models")
    given = parser.parse_args()
    for runs in given.runs:
        for run in seed_runs(runs).values():
            folder = given.out / runs.name / run.name
            if not folder.exists():
                keep(run, folder)


if __name__ == "__main__":
    main()
