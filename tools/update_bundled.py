"""Rewrite what README.md and docs/index.md say about the bundled models, from their results.

    python tools/update_bundled.py

Run it after `tpt bundle`. A test fails if a page has other numbers than the bundled models.
"""

import json
from pathlib import Path

from tp_transformer.model import bundled
from tp_transformer.scoring.compare import SplitPair, pairs
from tp_transformer.scoring.results import Results, SplitScore
from tp_transformer.table import markdown_table

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md")
SURE, HALF = 0.9, 0.5


def summary(folder: Path = bundled.FOLDER) -> str:
    """Return the scores and the training of the models in a folder as Markdown.

    Models with the same test questions share a table.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in bundled.names(folder):
        hashes = tuple(_results(folder, name).data["sha256"].values())
        groups.setdefault(hashes, []).append(name)
    if not groups:
        return "No model is bundled with this copy of the package.\n"
    return "\n".join(_table(folder, names) for names in groups.values())


def _results(folder: Path, name: str) -> Results:
    return Results.read(folder / name / bundled.RESULTS)


def _table(folder: Path, names: list[str]) -> str:
    """Return a table of models that were scored on the same questions, and sentences about it."""
    results = [_results(folder, name) for name in names]
    stages = [json.loads((folder / name / "training.json").read_text("utf-8"))["stages"]
              for name in names]  # fmt: skip
    compared = {pair.split: pair for pair in pairs(results[0], results[1:])[0]} if names[1:] else {}
    rows = [
        ["parameters", *(f"{one.model['n_parameters']:,}" for one in results)],
        ["training samples", *(f"{total(one, 'samples'):,.0f}" for one in stages)],
        [
            "core-hours of training",
            *(f"{total(one, 'core_seconds') / 3600:.1f}" for one in stages),
        ],
    ]
    for split, score in results[0].splits.items():
        title = results[0].task.title(split)
        scored = [one.splits[split] for one in results]
        rows.append([_what(title, score), *map(average, scored)])
        rows.append([f"{title}: modules above {SURE:.0%}", *(above(one, SURE) for one in scored)])
    lines = markdown_table(["", *(f"`{name}`" for name in names)], rows)
    return "\n".join([*lines, "", *_sentences(names, results[0], compared)]) + "\n"


def total(stages: list[dict[str, float]], field: str) -> float:
    """Return the sum of a field over the runs of a training."""
    return sum(stage[field] or 0 for stage in stages)


def _what(title: str, score: SplitScore) -> str:
    n_questions = sum(module.n for module in score.modules.values())
    return f"{title}: average over {len(score.modules)} modules ({n_questions:,} questions)"


def average(score: SplitScore) -> str:
    """Return the average over modules, and its interval."""
    mean, (low, high) = score.average
    return f"{mean:.1%} ({low:.1%} to {high:.1%})"


def above(score: SplitScore, limit: float) -> str:
    """Return the number of modules above a limit."""
    return str(sum(module.accuracy > limit for module in score.modules.values()))


def difference(pair: SplitPair) -> str:
    """Return the difference of two models on the same questions, and its interval."""
    low, high = pair.interval
    return f"{100 * pair.difference:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"


def _sentences(names: list[str], results: Results, compared: dict[str, SplitPair]) -> list[str]:
    """Return the differences of the two models, and what the first can answer."""
    split, score = next(iter(results.splits.items()))
    first = results.task.title(split).lower()
    lines = ["Exact match on generated questions, with 95% intervals over questions."]
    for pair in compared.values():
        lines.append(
            f"{pair.title}, `{names[0]}` minus `{names[1]}`, on the same questions: "
            f"{difference(pair)}."
        )
    for text, low, high in (("more than", SURE, 1.0), (f"{HALF:.0%} to", HALF, SURE)):
        named = [f"`{name}`" for name, one in score.modules.items() if low < one.accuracy <= high]
        lines.append(
            f"`{names[0]}` answers {text} {SURE:.0%} of the {first} questions of "
            f"{', '.join(named) or 'no module'}."
        )
    return lines


def rewritten(page: str, text: str, name: str = "bundled models") -> str:
    """Return a page with the part between the two marks of this name replaced."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, is_begun, rest = page.partition(begin)
    _, is_ended, after = rest.partition(end)
    if not is_begun or not is_ended:
        raise SystemExit(f"the page lacks {begin.strip()!r} or {end!r}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main() -> None:
    """Rewrite the pages."""
    text = summary()
    for page in PAGES:
        page.write_text(rewritten(page.read_text("utf-8"), text), "utf-8")
        print(f"{page.relative_to(ROOT)}: {', '.join(bundled.names()) or 'no bundled model'}")


if __name__ == "__main__":
    main()
