"""Score and analyse trained models, and rewrite the tables and the figure of docs/findings.md.

    python docs/update_findings.py models/tp models/plain [MODELS …] --data STORE --out FOLDER

The first two arguments are folders with the same seeds of TP-Transformers and of Transformers, of
`tpt train --seeds` or experiments/keep_models.py; the others are such folders, runs, or bundled
models. Each model is scored on
the test questions of the store and analysed on questions of arithmetic__mixed, as by `tpt evaluate`
and `tpt interpret`. Results are written to the folder `--out`; those that are there for the same
weights are used again, so that an interrupted command can be repeated. Delete the folder after a
change of the code.
"""

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from claims import CLAIMS, Claim, Found, Outcome, Values
from scipy import stats
from update_bundled import ROOT, rewritten

from tp_transformer.foundation import figures
from tp_transformer.foundation.progress import progress, showing
from tp_transformer.foundation.run_folder import name_of
from tp_transformer.foundation.statistics import holm, welch
from tp_transformer.interpret.analyses import ANALYSES, AnalysisRequest, StoreRequest
from tp_transformer.interpret.core.sample import PAPERS_MODULE
from tp_transformer.interpret.roles.reversal import CHANCE, KINDS
from tp_transformer.interpret.run import interpret
from tp_transformer.model import bundled
from tp_transformer.model.family import load, model_path
from tp_transformer.model.identity import model_hash
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import Choice
from tp_transformer.scoring.results import Results
from tp_transformer.show.document import markdown_table
from tp_transformer.training.history import history_of

PAGE = ROOT / "docs" / "findings.md"
FIGURE = "findings-reversal"
VALUES = "values"  # the analysis of roles, of value vectors
# Of the analyses: the file of the values, if it is not that of the name.
FILES = {VALUES: "roles", "attention": "attention-encoder"}
OF_ROLES = (VALUES, "interchange", "surgery", "tensor-product")  # not for models without roles
OPTIONS: dict[str, dict[str, Any]] = {VALUES: {"vectors": "value"}, "attention": {"head": 0}}


@dataclass(frozen=True, kw_only=True)
class Group:
    """Models that differ in their seeds: their names, scores and analyses."""

    name: str
    models: tuple[str, ...]
    samples: tuple[int, ...]
    results: tuple[Results, ...]
    found: tuple[Found, ...]


def groups_of(names: Sequence[str], data: Path, out: Path, count: int) -> Iterator[Group]:
    """Score and analyse the models of each name."""
    for name in names:
        folders = sorted(Path(name).glob("seed-*")) or [bundled.find(name)]
        own = [(folder, out / name_of(folder)) for folder in folders]
        yield Group(
            name=Path(name).name,
            models=tuple(name_of(folder) for folder in folders),
            samples=tuple(n_samples(folder) for folder in folders),
            results=tuple(scored(folder, data, results) for folder, results in own),
            found=tuple(analysed(folder, data, results, count) for folder, results in own),
        )


def values_of(group: Group) -> Group:
    """Return the same models with their value vectors in place of roles, and nothing else."""
    return replace(
        group,
        name=f"{group.name}, values",
        models=tuple(f"{name}, values" for name in group.models),
        found=tuple({"roles": found[VALUES]} for found in group.found),
    )


def n_samples(folder: Path) -> int:
    """Return the number of samples that a model was trained on."""
    history = history_of(model_path(folder))
    if history is None:
        raise SystemExit(f"{folder} has no record of its training")
    return sum(stage.samples for stage in history.stages)


def scored(folder: Path, data: Path, out: Path) -> Results:
    """Return the scores of a model, from a file if they are of these weights."""
    file = out / "results.json"
    if file.is_file():
        results = Results.read(file)
        if results.model["sha256"] == model_hash(load(folder)):
            return results
        file.unlink()
    out.mkdir(parents=True, exist_ok=True)
    splits = ("interpolate", "extrapolate")
    return evaluate(folder, data, file, Choice(splits=splits), show=progress)


def analysed(folder: Path, data: Path, out: Path, count: int) -> Found:
    """Return the values of all analyses of a model, from files if they are of these weights."""
    model = load(folder)
    sha256, found = model_hash(model), {}
    for name in (*ANALYSES, VALUES):
        if name in OF_ROLES and not model.config.d_role:
            continue
        file = out / name / f"{FILES.get(name, name)}.json"
        if not file.is_file() or _read(file)["model"]["sha256"] != sha256:
            print(file, flush=True)
            analysis = ANALYSES["roles" if name == VALUES else name]
            options = analysis.options(**OPTIONS.get(name, {}))
            request = AnalysisRequest(model=folder, count=count)
            if analysis.needs_store:
                request = StoreRequest(model=folder, data=data, module=PAPERS_MODULE, count=count)
            with showing(progress):
                interpret("roles" if name == VALUES else name, request, options, file.parent)
        found[name] = _read(file)
    return found


def _read(file: Path) -> Values:
    values: Values = json.loads(file.read_text("utf-8"))
    return values


def _models(groups: Sequence[Group]) -> list[str]:
    """The models, with the hashes of their weights."""
    rows = [
        [f"`{name}`", f"{results.model['n_parameters']:,}", f"{samples:,}",
         f"`{results.model['sha256'][:12]}`"]
        for group in groups
        for name, samples, results in zip(group.models, group.samples, group.results, strict=True)
    ]  # fmt: skip
    return markdown_table(["model", "parameters", "training samples", "SHA-256"], rows)


def _accuracies(group: Group, split: str, module: str | None) -> list[float]:
    """Return the accuracy of each seed on a module, or the average over modules."""
    scores = [results.splits[split] for results in group.results]
    if module is None:
        return [score.average[0] for score in scores]
    return [score.modules[module].accuracy for score in scores]


def _mean(values: Sequence[float]) -> str:
    """Return the mean over seeds with a 95% interval (Student's t), or a single value."""
    if len(values) == 1:
        return f"{values[0]:.1%}"
    mean, error = fmean(values), stats.sem(values)
    low, high = stats.t.interval(0.95, len(values) - 1, mean, error) if error else (mean, mean)
    return f"{mean:.1%} ({max(low, 0):.1%} to {min(high, 1):.1%})"


def _scores(groups: Sequence[Group]) -> list[str]:
    """Accuracies with intervals over seeds, and differences of the first two groups."""
    first, second = groups[:2]
    rows, p_values = [], []
    for split, score in first.results[0].splits.items():
        title = first.results[0].task.title(split)
        for module in (None, *score.modules):
            own = [_accuracies(group, split, module) for group in groups]
            interval, p = welch(own[0], own[1]) or (None, 1.0)
            p_values.append(p)
            limits = "" if interval is None else " ({:+.1f} to {:+.1f})".format(
                *(100 * end for end in interval)
            )  # fmt: skip
            difference = 100 * (fmean(own[0]) - fmean(own[1]))
            name = f"**{title}, average**" if module is None else f"`{module}`"
            rows.append([name, *map(_mean, own), f"{difference:+.1f}{limits}"])
    for row, p in zip(rows, holm(p_values), strict=True):
        row.append(f"{p:.2g}")
    heads = [f"`{group.name}` ({len(group.models)})" for group in groups]
    difference_of = f"`{first.name}` minus `{second.name}`, points"
    return markdown_table(["", *heads, difference_of, "p"], rows)


def _claims(groups: Sequence[Group], control: Group) -> list[str]:
    """The verdict on each claim: those that are not supported first."""
    columns = [groups[0], control, *groups[1:]]
    tp, plain = (group.found for group in groups[:2])
    verdicts = {claim: claim.verdict(tp, plain) for claim in CLAIMS}
    order = ["not supported", "not testable"]
    ranked = sorted(
        CLAIMS,
        key=lambda claim: order.index(verdicts[claim]) if verdicts[claim] in order
        else len(order) + (verdicts[claim] == "supported"),
    )  # fmt: skip
    rows = [
        [claim.section, claim.text, f"**{verdicts[claim]}**",
         *(_holding(claim.outcomes(group.found)) for group in columns)]
        for claim in ranked
    ]  # fmt: skip
    heads = [f"`{group.name}`" for group in columns]
    return markdown_table(["section", "claim", "verdict", *heads], rows)


def _holding(outcomes: Sequence[Outcome]) -> str:
    """Return in how many models a criterion holds."""
    tested = [outcome.holds for outcome in outcomes if outcome.holds is not None]
    if not outcomes:
        return ""
    return f"{sum(tested)} of {len(tested)}" if tested else "not testable"


def _numbers(groups: Sequence[Group]) -> list[str]:
    """The numbers of each model for each claim."""
    lines = []
    for number, claim in enumerate(CLAIMS, 1):
        rows = [
            [f"`{name}`", _shown(outcome), outcome.numbers]
            for group in groups
            for name, outcome in zip(group.models, _outcomes(claim, group), strict=True)
            if outcome is not None
        ]
        lines += ["", f"**{number}. {claim.text}** (section {claim.section}) {claim.criterion}", ""]
        lines += markdown_table(["model", "holds", "numbers"], rows)
    return lines[1:]


def _outcomes(claim: Claim, group: Group) -> list[Outcome | None]:
    return [(claim.outcomes([found]) or [None])[0] for found in group.found]


def _shown(outcome: Outcome) -> str:
    return {True: "yes", False: "no", None: "not testable"}[outcome.holds]


def _surgery(groups: Sequence[Group]) -> list[str]:
    """Shares of changed answers if the roles of all heads of the last layer are changed."""
    own = {
        name: found["surgery"]
        for group in groups
        for name, found in zip(group.models, group.found, strict=True)
        if "surgery" in found
    }
    rows: dict[str, list[str]] = {}
    for values in own.values():
        for effect in values["effects"]:
            if effect["target"] == "all heads":
                rows.setdefault(effect["operation"], []).append(f"{effect['changed_share']:.0%}")
    heads = ["roles of the last layer", *(f"`{name}`" for name in own)]
    return markdown_table(heads, [[name, *shares] for name, shares in rows.items()])


def plot_reversal(groups: Sequence[Group]) -> "figures.Figure":
    """Plot the share of reversed sides in each layer: a line for each model, and the controls."""
    with figures.blank(figures.PAGE, 2.2) as drawn:
        panels: Any = drawn.subplots(1, len(KINDS), sharey=True)
        for axes, kind in zip(panels, KINDS, strict=True):
            for colour, group in zip(figures.COLOURS, groups, strict=False):
                for found in group.found:
                    _draw_model(axes, found["roles"]["reversal"], kind, colour, group.name)
            axes.axhline(CHANCE, color="#808080", linewidth=0.6)
            axes.set_title({"probe": "linear probes", "clusters": "clusters"}[kind])
            axes.set_xlabel("encoder layer")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_ylim(0, 1)
        panels[0].set_ylabel("reversed sides")
        handles = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
        drawn.legend(handles.values(), handles, loc="outside right upper")
        return drawn


def _draw_model(
    axes: "figures.Axes", reversal: Mapping[str, Any], kind: str, colour: str, name: str
) -> None:
    own = [layer for layer in reversal["model"]["layers"] if layer["kind"] == kind]
    layers = [layer["layer"] for layer in own]
    shares = [layer["transfer"]["reversed_share"] for layer in own]
    axes.plot(layers, shares, marker="o", markersize=3, color=colour, label=name)


def main() -> None:
    """Score and analyse the models, and rewrite the page and its figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+", help="folders of seeds, runs, or bundled models")
    parser.add_argument("--data", type=Path, required=True, help="the store")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    parser.add_argument("--count", type=int, default=128, help="questions of each analysis")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to rewrite")
    given = parser.parse_args()
    groups = list(groups_of(given.models, given.data, given.out, given.count))
    page = given.page.read_text("utf-8")
    for mark, lines in {
        "models": _models(groups),
        "scores": _scores(groups),
        "claims": _claims(groups, values_of(groups[0])),
        "numbers": _numbers([groups[0], values_of(groups[0]), *groups[1:]]),
        "surgery": _surgery(groups),
    }.items():
        page = rewritten(page, "\n".join(lines) + "\n", mark)
    figures.save(plot_reversal(groups), given.out, FIGURE)
    folder = given.page.parent / "figures"
    folder.mkdir(exist_ok=True)
    shutil.copy(given.out / f"{FIGURE}.svg", folder)
    given.page.write_text(page, "utf-8")
    print(given.page)


if __name__ == "__main__":
    main()
