"""Repeat the training of a bundled model from its recorded settings, by plain commands of `tpt`.

    python experiments/repeat_training.py tp-transformer-arithmetic --out repeated

Each run starts from the best model of the one before. The questions are generated first, where the
store has recorded how; `--data` names a store to use for all runs instead. The same command resumes
what is missing; `--dry-run` prints the commands.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tp_transformer.model import bundled
from tp_transformer.report.cards import generation_command, settings_file
from tp_transformer.training.history import history_of


def commands(model: str, out: Path, data: Path | None = None) -> Iterator[list[str]]:
    """Yield the commands that repeat the runs of a model, in their order."""
    folder, history = bundled.find(model), history_of(model)
    if history is None or history.unknown_start is not None:
        raise SystemExit(f"{folder} has no record of all runs that led to its weights")
    earlier: Path | None = None
    stores: set[Path] = set()
    for number, stage in enumerate(history.stages, 1):
        store = out / stage.data["name"] if data is None else data
        generate = generation_command({**stage.data, "name": str(store)})
        if data is None and generate is None:
            raise SystemExit(f"the questions of {stage.run} were not generated: give --data")
        if data is None and generate is not None and store not in stores:
            yield generate
        stores.add(store)
        run, threads = out / stage.run, stage.sessions[-1]["threads"]
        config = str(folder / settings_file(number))
        command = ["tpt", "train", "--config", config, "--data", str(store), "--run", str(run)]
        command += ["--threads", str(threads)] if threads else []
        yield command if earlier is None else [*command, "--init-from", str(earlier)]
        earlier = run


def main() -> None:
    """Run the commands, or print them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="the name of a bundled model")
    parser.add_argument("--out", type=Path, required=True, help="the folder of stores and runs")
    parser.add_argument("--data", type=Path, help="a store to use for all runs")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    options = parser.parse_args()
    for command in commands(options.model, options.out, options.data):
        print("$", shlex.join(command), flush=True)
        if not options.dry_run:
            _, *arguments = command
            program = [sys.executable, "-m", "tp_transformer"]
            subprocess.run([*program, *arguments], check=True)  # noqa: S603, commands of tpt


if __name__ == "__main__":
    main()
