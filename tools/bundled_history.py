"""Rewrite the tables of docs/experiments.md on the bundled models, from the git history.

    python tools/bundled_history.py

Each commit that replaced the bundled models has the scores and the training of its models, which
`tpt bundle` wrote. Run it after such a commit; a test fails if the page lacks an earlier one.
"""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from tp_transformer.scoring.compare import pairs
from tp_transformer.scoring.results import Results
from tp_transformer.table import markdown_table
from update_bundled import HALF, ROOT, SURE, above, average, difference, rewritten, total

PAGE = ROOT / "docs" / "experiments.md"
NAMES = ("tp-transformer-small", "transformer-small")
FOLDER = "src/tp_transformer/bundled"


def git(*arguments: str) -> str:
    """Return what a git command prints."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603


def commits() -> list[str]:
    """Return the commits that replaced the bundled models, oldest first."""
    return git("log", "--reverse", "--format=%H", "--", f"{FOLDER}/{NAMES[0]}/results.json").split()


def read(commit: str, name: str, file: str) -> Any:
    """Return a JSON file of a bundled model as of a commit."""
    return json.loads(git("show", f"{commit}:{FOLDER}/{name}/{file}"))


def history(known: Sequence[str]) -> str:
    """Return the tables of some commits as Markdown."""
    rows, differences = [], []
    for commit in known:
        stages = [read(commit, name, "training.json")["stages"] for name in NAMES]
        results = [Results.from_json(read(commit, name, "results.json")) for name in NAMES]
        run = f"{len(stages[0])} (`{commit[:7]}`)"
        rows += [[run, *row(*one)] for one in zip(NAMES, stages, results, strict=True)]
        differences.append([run, *map(difference, pairs(results[0], results[1:])[0])])
    heads = ["after run (commit)", "model", "samples", "core-hours", "held out", "loss"]
    heads += ["interpolation", "extrapolation", f"above {HALF:.0%}", f"above {SURE:.0%}"]
    tables = [
        markdown_table(heads, rows),
        markdown_table(["after run (commit)", "interpolation", "extrapolation"], differences),
    ]
    title = f"`{NAMES[0]}` minus `{NAMES[1]}` on the same questions:"
    return "\n".join([*tables[0], "", title, "", *tables[1]]) + "\n"


def row(name: str, stages: list[dict[str, Any]], results: Results) -> list[str]:
    """Return the training and the scores of one model."""
    held_out, interpolation = stages[-1]["validation"], results.splits["interpolate"]
    return [
        f"`{name}`",
        f"{total(stages, 'samples'):,.0f}",
        f"{total(stages, 'core_seconds') / 3600:.1f}",
        f"{held_out['exact_match']:.1%}",
        f"{held_out['loss']:.4f}",
        average(interpolation),
        average(results.splits["extrapolate"]),
        above(interpolation, HALF),
        above(interpolation, SURE),
    ]


def main() -> None:
    """Rewrite the page."""
    text = PAGE.read_text("utf-8")
    PAGE.write_text(rewritten(text, history(commits()), "history of the bundled models"), "utf-8")


if __name__ == "__main__":
    main()
