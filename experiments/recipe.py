"""Compare settings of training: what does a small model learn most from in little time?

    python experiments/recipe.py STORE --out FOLDER [--study settings|sizes] [--only NAME ...]
                                 [--samples 64000] [--processes 1]

STORE has modules of the Mathematics Dataset, from `tpt data generate`. Each setting trains a preset
by `tpt train`, on one thread, on all modules of the store, and differs from the first setting of
its study in what its name says. The study `settings` trains tp-transformer-small on a store of all
modules, and the study `sizes` transformer-small. The initial weights of equal sizes are the same,
except for another seed, which shows what differences mean nothing. Settings whose samples take more
or less time than those of the first have fewer or more samples, so that all take about the same
processor time. Adam's average of squared gradients and the moving average of the weights cover the
same number of samples for every batch size; the warmup is a tenth of the samples of a setting. The
table has the loss and the exact match of each setting on the same held-out questions (of the
averaged weights, if there is an average), and the processor time of its commands.

- Two sets: a quarter of the samples are repetitions of few questions (`two_sets.py`).
- Stages: four runs, each from the weights of the one before, with a new state of the optimizer and
  another seed of the samples; the cooldown is the fourth run. All of them are validated, which
  counts in the processor time. With weights by learning progress
  (`learning_progress.py`), the shares of the modules in a stage follow the decrease of their losses
  in the second half of the stage before. The setting to compare them with is that of four stages
  with equal weights.

Settings that are finished are kept in FOLDER, so that an interrupted study can be continued; a
setting that is not finished is trained from its start, so that its processor time is complete. The
results are in docs/experiments.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import learning_progress
import two_sets

from tp_transformer.data.mathematics.modules import MODULE_NAMES

SAMPLES = 64_000
HELD_OUT = 5_600  # questions
HALF_LIFE = 8_000  # of Adam's average of squared gradients, in samples
AVERAGED = 3_000  # half-life of the moving average of the weights, in samples
WARMUP = 0.1  # of the samples
N_STAGES = 4


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of the comparison; the defaults are those of the first one.

    Attributes:
        preset: of `tpt train`
        optimizer: of `tpt train`
        rate: the learning rate
        batch: samples in a batch
        schedule: of the learning rate
        cooldown: share of the run in which the learning rate decreases
        average: whether there is a moving average of the weights
        d_model: size of the model; d_ff is four times as large
        n_layers: layers of the encoder, and of the decoder
        samples: number of samples, relative to that of the first setting
        repeated: number of questions of each module and difficulty in the small set of two; 0: none
        stages: what weights of the modules the stages have; None: there are no stages
        seed: of the initial weights and the samples
    """

    preset: str = "tp-transformer-small"
    optimizer: str = "muon"
    rate: float = 2e-3
    batch: int = 64
    schedule: str = "constant"
    cooldown: float = 0.25
    average: bool = False
    d_model: int = 128
    n_layers: int = 3
    samples: float = 1.0
    repeated: int = 0
    stages: Literal["equal", "progress"] | None = None
    seed: int = 0

    def options(self, samples: int) -> dict[str, Any]:
        """Return the options of `tpt train` for a number of samples."""
        steps = samples // self.batch
        return {
            "model.d_model": self.d_model,
            "model.d_ff": 4 * self.d_model,
            "model.n_layers": self.n_layers,
            "data.batch_size": self.batch,
            "optim.optimizer": self.optimizer,
            "optim.learning_rate": self.rate,
            "optim.adam_rate": 0.7 if self.optimizer == "muon" else 1.0,
            "optim.betas": (0.9, 0.5 ** (self.batch / HALF_LIFE)),
            "optim.clip_norm": 1.0,
            "optim.schedule": self.schedule,
            "optim.warmup": int(WARMUP * samples) // self.batch,
            "optim.cooldown": self.cooldown,
            "training.steps": steps,
            "training.ema": 0.5 ** (self.batch / AVERAGED) if self.average else None,
            "training.precision": "bfloat16",
            "training.seed": self.seed,
            "training.log_every": max(steps // 10, 1),
            "validation.every": steps,
            "validation.count": HELD_OUT,
        }


SETTINGS = {
    "Muon, learning rate 2e-3, batches of 64": Setting(),
    "another seed": Setting(seed=1),
    "learning rate 5e-4": Setting(rate=5e-4),
    "learning rate 1e-3": Setting(rate=1e-3),
    "learning rate 4e-3": Setting(rate=4e-3),
    "batches of 128, learning rate 2.8e-3": Setting(batch=128, rate=2.8e-3, samples=1.15),
    "batches of 32, learning rate 1.4e-3": Setting(batch=32, rate=1.4e-3, samples=0.8),
    "batches of 16, learning rate 1e-3": Setting(batch=16, rate=1e-3, samples=0.6),
    "Adam, learning rate 5e-4": Setting(optimizer="adam", rate=5e-4),
    "Adam, learning rate 1e-3": Setting(optimizer="adam", rate=1e-3),
    "Adam, learning rate 2e-3": Setting(optimizer="adam"),
    "Adam, learning rate 7e-4, batches of 32": Setting(
        optimizer="adam", rate=7e-4, batch=32, samples=0.9
    ),
    "cosine": Setting(schedule="cosine", cooldown=0.0),
    "constant rate, moving average": Setting(cooldown=0.0, average=True),
    "cooldown, moving average": Setting(average=True),
    "two sets, 2016 repeated questions": Setting(repeated=12),
    "two sets, 168 repeated questions": Setting(repeated=1),
    "four stages, equal weights": Setting(stages="equal"),
    "four stages, weights by learning progress": Setting(stages="progress"),
    "d_model 64": Setting(d_model=64, samples=1.8),
    "d_model 192": Setting(d_model=192, samples=1 / 2),
    "d_model 256": Setting(d_model=256, samples=1 / 3),
}
plain = partial(Setting, preset="transformer-small")
SIZES = {
    "3 layers, d_model 128": plain(),
    "another seed": plain(seed=1),
    "2 layers": plain(n_layers=2, samples=1.48),
    "4 layers": plain(n_layers=4, samples=0.76),
    "6 layers": plain(n_layers=6, samples=0.53),
    "d_model 192": plain(d_model=192, samples=0.52),
    "d_model 256": plain(d_model=256, samples=0.31),
}
STUDIES = {"settings": SETTINGS, "sizes": SIZES}


def tpt(*arguments: str) -> float:
    """Run a command of the package on one thread; return its processor seconds."""
    command = [str(Path(sys.executable).with_name("tpt")), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, stdout=sys.stderr, env=environment)  # noqa: S603
    # The time of this child; `os.times` would include children that run at the same time.
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(command[:2])} failed with exit code {child.returncode}")
    return usage.ru_utime + usage.ru_stime


def train(preset: str, store: Path, run: Path, options: dict[str, Any], *more: str) -> float:
    """Train a model in a new run folder; return the processor seconds."""
    where = ["--data", str(store), "--run", str(run), "--threads", "1"]
    flags = [f"--{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in options.items()]
    return tpt("train", "--config", preset, *where, *flags, *more)


def train_in_stages(setting: Setting, store: Path, folder: Path, samples: int) -> float:
    """Train in stages of equally many samples; return the processor seconds of all commands."""
    seconds, weights = 0.0, dict.fromkeys(MODULE_NAMES, 1.0)
    init_from: list[str] = []
    first, *_, last = range(N_STAGES)
    for stage in range(N_STAGES):
        options = setting.options(samples // N_STAGES)
        half = max(options["training.steps"] // 2, 1)
        options |= {
            "data.weights": weights,
            "optim.cooldown": 1.0 if stage == last else 0.0,
            "training.keep_every": half,
            "training.seed": stage,
        }
        if stage == first:  # later warmups follow a warmup, and are shorter
            options["optim.warmup"] = setting.options(samples)["optim.warmup"]
        run = folder / ("run" if stage == last else f"stage-{stage + 1}")
        seconds += train(setting.preset, store, run, options, *init_from)
        init_from = ["--init-from", str(run)]
        if setting.stages == "progress" and stage != last:
            models = {"half": run / "checkpoints" / f"step-{half:08}", "end": run}
            measured = [
                learning_progress.losses(
                    tpt, model, store, MODULE_NAMES, folder / f"stage-{stage + 1}-{place}.json"
                )
                for place, model in models.items()
            ]
            weights = learning_progress.weights(*(losses for losses, _ in measured))
            seconds += sum(spent for _, spent in measured)
    return seconds


def measure(
    name: str, settings: Mapping[str, Setting], store: Path, out: Path, first_samples: int
) -> dict[str, Any]:
    """Train with one setting, unless that was done before; return what the table needs."""
    setting, file_name = settings[name], name.replace(" ", "-").replace(",", "")
    samples = round(setting.samples * first_samples) // setting.batch * setting.batch
    folder, result = out / file_name, out / f"{file_name}.json"
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text("utf-8"))
        if found["samples"] != samples:
            sys.exit(f"{result} is the result of {found['samples']} samples; use another --out")
        return found
    if folder.exists():
        shutil.rmtree(folder)
    if setting.repeated:
        store = two_sets.write(store, folder / "store", MODULE_NAMES, HELD_OUT, setting.repeated)
    if setting.stages:
        seconds = train_in_stages(setting, store, folder, samples)
    else:
        seconds = train(setting.preset, store, folder / "run", setting.options(samples))
    lines = (folder / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    last = [line for line in map(json.loads, lines) if line["kind"] == "validation"][-1]
    scores = {"loss": last["loss"], "exact_match": last["exact_match"]}
    found = scores | {"seconds": seconds, "samples": samples}
    result.write_text(json.dumps(found, indent=1), "utf-8")
    return found


def main() -> None:
    """Train with each setting and print the table, in which the settings keep their order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--study", choices=STUDIES, default="settings")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the settings of the study")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of the first setting")
    parser.add_argument("--processes", type=int, default=1, help="settings that train at once")
    given = parser.parse_args()
    settings = STUDIES[given.study]
    names = list(settings) if given.only is None else given.only
    if unknown := [name for name in names if name not in settings]:
        parser.error(f"--only: not a setting of {given.study}: {', '.join(unknown)}")
    given.out.mkdir(parents=True, exist_ok=True)
    print("| setting | samples | loss | exact match | processor seconds | samples/s |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    one = partial(
        measure, settings=settings, store=given.store, out=given.out, first_samples=given.samples
    )
    pool = ThreadPoolExecutor(given.processes)  # its threads wait for processes
    try:
        for name, found in zip(names, pool.map(one, names), strict=True):
            row = f"| {name} | {found['samples']:,} | {found['loss']:.4f} |"
            speed = found["samples"] / found["seconds"]
            print(
                f"{row} {found['exact_match']:.1%} | {found['seconds']:.0f} | {speed:.0f} |",
                flush=True,
            )
    finally:
        pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()
