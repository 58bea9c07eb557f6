"""Compare settings of training: what does a small TP-Transformer learn most from in little time?

    python experiments/recipe.py STORE --out FOLDER [--only NAME ...] [--samples 64000]

STORE has the modules of the Mathematics Dataset, from `tpt data generate`. Each setting trains the
preset tp-transformer-small by `tpt train` from the same initial weights, on one thread, on eight
modules that can be learned in short runs, and differs from the first setting in one thing. Adam's
average of squared gradients, the warmup and the moving average of the weights cover the same number
of samples for every batch size. Settings that are finished are kept in FOLDER, so that an
interrupted study can be continued. The table has the loss and the exact match of each setting on
held-out questions, and its processor time. The results are in docs/experiments.md.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MODULES = (
    "arithmetic__add_or_sub",
    "comparison__closest",
    "comparison__kth_biggest",
    "comparison__pair",
    "comparison__sort",
    "numbers__place_value",
    "numbers__round_number",
    "polynomials__collect",
)
HALF_LIFE = 8_000  # of Adam's average of squared gradients, in samples
AVERAGED = 3_000  # half-life of the moving average of the weights, in samples
WARMUP = 6_400  # samples
ADAM = {"optim.optimizer": "adam", "optim.adam_rate": 1.0}

# What differs from the first setting; "batch" and "average" set several fields.
SETTINGS: dict[str, dict[str, Any]] = {
    "Muon, learning rate 2e-3, batches of 64": {},
    "learning rate 5e-4": {"optim.learning_rate": 5e-4},
    "learning rate 1e-3": {"optim.learning_rate": 1e-3},
    "learning rate 4e-3": {"optim.learning_rate": 4e-3},
    "batches of 128": {"batch": 128},
    "batches of 128, learning rate 2.8e-3": {"batch": 128, "optim.learning_rate": 2.8e-3},
    "batches of 32": {"batch": 32},
    "batches of 32, learning rate 1.4e-3": {"batch": 32, "optim.learning_rate": 1.4e-3},
    "batches of 16, learning rate 1e-3": {"batch": 16, "optim.learning_rate": 1e-3},
    "Adam, learning rate 5e-4": ADAM | {"optim.learning_rate": 5e-4},
    "Adam, learning rate 1e-3": ADAM | {"optim.learning_rate": 1e-3},
    "Adam, learning rate 2e-3": ADAM,
    "cosine": {"optim.schedule": "cosine", "optim.cooldown": 0.0},
    "constant rate, moving average": {"optim.cooldown": 0.0, "average": True},
    "cooldown, moving average": {"average": True},
}


def settings(change: dict[str, Any], samples: int) -> dict[str, Any]:
    """Return the settings of a run of `tpt train`."""
    change = dict(change)
    batch = change.pop("batch", 64)
    average = change.pop("average", False)
    chosen: dict[str, Any] = {
        "data.batch_size": batch,
        "data.modules": MODULES,
        "optim.optimizer": "muon",
        "optim.learning_rate": 2e-3,
        "optim.adam_rate": 0.7,
        "optim.betas": [0.9, 0.5 ** (batch / HALF_LIFE)],
        "optim.clip_norm": 1.0,
        "optim.schedule": "constant",
        "optim.warmup": WARMUP // batch,
        "optim.cooldown": 0.25,
        "training.steps": samples // batch,
        "training.ema": 0.5 ** (batch / AVERAGED) if average else None,
        "training.precision": "bfloat16",
        "training.log_every": max(samples // batch // 10, 1),
        "validation.every": samples // batch,
        "validation.count": 3_200,
    }
    return chosen | change


def train(name: str, store: Path, out: Path, samples: int) -> dict[str, Any]:
    """Train with one setting, unless that was done before; return what the table needs."""
    folder = out / name.replace(" ", "-").replace(",", "")
    result = folder.with_suffix(".json")
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text("utf-8"))
        return found
    tpt = [str(Path(sys.executable).with_name("tpt")), "train", "--config", "tp-transformer-small"]
    where = ["--data", str(store), "--run", str(folder), "--threads", "1"]
    chosen = settings(SETTINGS[name], samples).items()
    flags = [f"--{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in chosen]
    before = os.times()
    subprocess.run([*tpt, *where, *flags], check=True, stdout=sys.stderr)  # noqa: S603
    after = os.times()
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    last = [line for line in map(json.loads, lines) if line["kind"] == "validation"][-1]
    found = {
        "loss": last["loss"],
        "exact_match": last["exact_match"],
        "seconds": after.children_user
        + after.children_system
        - before.children_user
        - before.children_system,
    }
    result.write_text(json.dumps(found, indent=1), "utf-8")
    return found


def main() -> None:
    """Train with each setting and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--samples", type=int, default=64_000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print("| setting | loss | exact match | processor seconds |\n|---|---:|---:|---:|")
    for name in options.only:
        found = train(name, options.store, options.out, options.samples)
        row = f"| {name} | {found['loss']:.4f} | {found['exact_match']:.1%} |"
        print(f"{row} {found['seconds']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
