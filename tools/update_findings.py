"""Score and analyse trained models, and rewrite the tables and the figure of docs/findings.md.

    python tools/update_findings.py models/tp models/plain [MODELS …] --data STORE --out FOLDER

The first two arguments are folders with seeds of TP-Transformers and of Transformers, of
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy import stats

from claims import CLAIMS, Analyses, Claim, Outcome, Values, verdict
from tp_transformer import figures
from tp_transformer.data.store import MANIFEST
from tp_transformer.interpret.analyses import ANALYSES, AnalysisRequest, StoreRequest
from tp_transformer.interpret.core.sample import PAPERS_MODULE
from tp_transformer.interpret.roles.reversal import CHANCE, KINDS
from tp_transformer.interpret.run import interpret
from tp_transformer.model import bundled
from tp_transformer.model.checkpoint import load, model_hash, model_path
from tp_transformer.runtime.progress import progress, showing
from tp_transformer.runtime.run_folder import name_of, sha256
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import QuestionChoice
from tp_transformer.scoring.results import Results
from tp_transformer.scoring.statistics import Interval, holm, paired_t
from tp_transformer.table import markdown_table
from tp_transformer.training.history import history_of
from update_bundled import ROOT, rewritten

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
    analyses: tuple[Analyses, ...]

    @property
    def seeds(self) -> list[str]:
        """The names of the seeds."""
        return [Path(model).name for model in self.models]


def groups_of(
    names: Sequence[str], seeds: Collection[str], data: Path, out: Path, count: int
) -> Iterator[Group]:
    """Score and analyse the models of each name: those of some seeds, or a single model."""
    for name in names:
        folders = [Path(name) / seed for seed in sorted(seeds) if (Path(name) / seed).is_dir()]
        folders = folders or [bundled.find(name)]
        own = [(folder, out / name_of(folder)) for folder in folders]
        yield Group(
            name=Path(name).name,
            models=tuple(name_of(folder) for folder in folders),
            samples=tuple(n_samples(folder) for folder in folders),
            results=tuple(scored(folder, data, results) for folder, results in own),
            analyses=tuple(analysed(folder, data, results, count) for folder, results in own),
        )


def common_seeds(names: Sequence[str]) -> set[str]:
    """Return the seeds that all folders of seeds have; others are not compared."""
    seeds = [{folder.name for folder in Path(name).glob("seed-*")} for name in names]
    common = set.intersection(*filter(None, seeds)) if all(seeds[:2]) else set()
    if len(seeds) < 2 or not common:
        raise SystemExit(f"name two folders of models with the same seeds first, not {names}")
    return common


def require_inputs(out: Path, data: Path, count: int) -> None:
    """Raise an error if a folder has results of another store or number of questions."""
    inputs = {"data": sha256(data / MANIFEST), "count": count}
    file = out / "inputs.json"
    if file.is_file() and _read(file) != inputs:
        raise SystemExit(f"{out} has results of other questions: name another folder")
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(inputs) + "\n", "utf-8")


def values_of(group: Group) -> Group:
    """Return the same models with their value vectors in place of roles, and nothing else."""
    return replace(
        group,
        name=f"{group.name}, values",
        models=tuple(f"{name}, values" for name in group.models),
        analyses=tuple({"roles": analyses[VALUES]} for analyses in group.analyses),
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
    return evaluate(folder, data, file, QuestionChoice(splits=splits), show=progress)


def analysed(folder: Path, data: Path, out: Path, count: int) -> Analyses:
    """Return the values of all analyses of a model, from files if they are of these weights."""
    model = load(folder)
    sha256, analyses = model_hash(model), {}
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
        analyses[name] = _read(file)
    return analyses


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
    """Accuracies with intervals over seeds, and differences from the groups of the same seeds."""
    first = groups[0]
    paired = [group for group in groups[1:] if group.seeds == first.seeds]
    rows, differences = [], []
    for split, score in first.results[0].splits.items():
        title = first.results[0].task.title(split)
        for module in (None, *score.modules):
            accuracies = {group.name: _accuracies(group, split, module) for group in groups}
            name = f"**{title}, average**" if module is None else module.partition("__")[2]
            rows.append([name, *map(_mean, accuracies.values())])
            differences.append([
                (fmean(accuracies[first.name]) - fmean(accuracies[group.name]),
                 paired_t(accuracies[first.name], accuracies[group.name]))
                for group in paired
            ])  # fmt: skip
    tests = [test for row in differences for _, test in row if test is not None]
    adjusted = iter(holm([p_value for _, p_value in tests]))
    for row, own in zip(rows, differences, strict=True):
        row += [_difference(value, test, adjusted) for value, test in own]
    heads = [f"`{group.name}` ({len(group.models)})" for group in groups]
    minus = [f"`{first.name}` minus `{group.name}`, points" for group in paired]
    return markdown_table(["", *heads, *minus], rows)


def _difference(
    value: float, test: tuple[Interval, float] | None, adjusted: Iterator[float]
) -> str:
    """Return a difference in points, with its interval and its adjusted p-value if it has any."""
    if test is None:
        return f"{100 * value:+.1f}"
    low, high = (100 * end for end in test[0])
    return f"{100 * value:+.1f} ({low:+.1f} to {high:+.1f}), p = {next(adjusted):.2g}"


def _claims(groups: Sequence[Group], control: Group) -> list[str]:
    """The verdict on each claim: those that are not supported first."""
    columns = [groups[0], control, *groups[1:]]
    verdicts = {claim: _verdict(claim, groups, control) for claim in CLAIMS}
    order = ["not supported", "not testable"]
    ranked = sorted(
        CLAIMS,
        key=lambda claim: next(
            (rank for rank, text in enumerate(order) if verdicts[claim].startswith(text)),
            len(order) + verdicts[claim].startswith("supported"),
        ),
    )
    rows = [
        [f"{claim.section}: {claim.text}{' †' if claim.is_follow_up else ''}",
         f"**{verdicts[claim]}**",
         *("" if claim.is_of_architecture else _n_holding(claim.outcomes(group.analyses))
           for group in columns)]
        for claim in ranked
    ]  # fmt: skip
    heads = [f"`{group.name}`" for group in columns]
    return markdown_table(["section and claim", "verdict", *heads], rows, n_texts=2)


def _verdict(claim: Claim, groups: Sequence[Group], control: Group) -> str:
    tp, plain = (claim.outcomes(group.analyses) for group in groups[:2])
    if claim.is_of_plain:
        return verdict(plain)
    controls = [claim.outcomes(control.analyses), plain] if claim.needs == "roles" else []
    return verdict(tp, controls)


def _n_holding(outcomes: Sequence[Outcome]) -> str:
    """Return in how many models a criterion holds."""
    tested = [outcome.holds for outcome in outcomes if outcome.holds is not None]
    if not outcomes:
        return ""
    return f"{sum(tested)}/{len(tested)}" if tested else "not testable"


def _numbers(groups: Sequence[Group]) -> list[str]:
    """The numbers of each model for each claim."""
    lines = []
    for number, claim in enumerate(CLAIMS, 1):
        rows = [
            [f"`{name}`", {True: "yes", False: "no", None: "not testable"}[outcome.holds],
             outcome.numbers]
            for group in (groups[:1] if claim.is_of_architecture else groups)
            for name, analyses in zip(group.models, group.analyses, strict=True)
            for outcome in claim.outcomes([analyses])
        ]  # fmt: skip
        if claim.is_of_architecture:
            rows = [["random networks", *rows[0][1:]]]
        lines += ["", f"**{number}. {claim.text}** (section {claim.section}) {claim.criterion}"]
        if rows:
            lines += ["", *markdown_table(["model", "holds", "numbers"], rows, n_texts=3)]
    return lines[1:]


def _surgery(groups: Sequence[Group]) -> list[str]:
    """Shares of changed answers if the roles of all heads of the last layer are changed."""
    surgeries = {
        name: analyses["surgery"]
        for group in groups
        for name, analyses in zip(group.models, group.analyses, strict=True)
        if "surgery" in analyses
    }
    rows: dict[str, list[str]] = {}
    for values in surgeries.values():
        for effect in values["effects"]:
            if effect["target"] == "all heads":
                rows.setdefault(effect["operation"], []).append(f"{effect['changed_share']:.0%}")
    heads = ["roles of the last layer", *(f"`{name}`" for name in surgeries)]
    return markdown_table(heads, [[name, *shares] for name, shares in rows.items()])


def plot_reversal(groups: Sequence[Group]) -> "figures.Figure":
    """Plot the share of reversed sides in each layer: a line for each model, and the controls."""
    with figures.blank(figures.PAGE, 2.2) as drawn:
        panels: Any = drawn.subplots(1, len(KINDS), sharey=True)
        for axes, kind in zip(panels, KINDS, strict=True):
            for colour, group in zip(figures.COLOURS, groups, strict=False):
                for analyses in group.analyses:
                    _draw_model(axes, analyses["roles"]["reversal"], kind, colour, group.name)
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
    layers = [layer for layer in reversal["model"]["layers"] if layer["kind"] == kind]
    shares = [layer["transfer"]["reversed_share"] for layer in layers]
    axes.plot(
        [layer["layer"] for layer in layers],
        shares,
        marker="o",
        markersize=3,
        color=colour,
        label=name,
    )


def main() -> None:
    """Score and analyse the models, and rewrite the page and its figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+", help="folders of seeds, runs, or bundled models")
    parser.add_argument("--data", type=Path, required=True, help="the store")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    parser.add_argument("--count", type=int, default=128, help="questions of each analysis")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to rewrite")
    given = parser.parse_args()
    seeds = common_seeds(given.models)
    require_inputs(given.out, given.data, given.count)
    groups = list(groups_of(given.models, seeds, given.data, given.out, given.count))
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
