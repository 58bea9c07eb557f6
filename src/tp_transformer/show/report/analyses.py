"""Sections of analyses: what each found, its tables and its figures."""

from collections.abc import Sequence
from typing import Any

from tp_transformer.errors import ResultsError
from tp_transformer.interpret.analyses import ANALYSES
from tp_transformer.show.report.inputs import Inputs, JsonFile
from tp_transformer.show.report.markup import (
    Markup,
    Section,
    bullets,
    command,
    element,
    heading,
    paragraph,
    picture,
    table,
)
from tp_transformer.table import Table

# What a reader should know before the findings; docs/interpretation.md has the details.
SUMMARIES = {
    "roles": "The role vectors of each head are clustered, and a cluster is named by what its "
    "positions have in common. Linear probes measure how much of the structure of the expression "
    "is in the roles, compared with untrained models and with the text alone.",
    "attention": "Attention maps, as in figure 3 of the paper, and the heads that follow a "
    "relation, such as that of an argument to its operator, beyond baselines that do not know the "
    "structure.",
    "information": "How well an affine map reconstructs a hidden state from the value vector of "
    "one head: by the protocol of section 6.1 of the paper, and on held-out questions.",
    "binding": "Whether attention confuses (a/b)/(c/d) with the same numbers in other places: in "
    "the simplified network of section 6.2 of the paper, and in the model.",
    "interchange": "Two of the four numbers in (a/b)/(c/d) get the roles that they have at the "
    "place of the other. If roles encode where a number stands, the model then answers the "
    "question with the numbers exchanged.",
    "surgery": "How many answers change if roles are zeroed, swapped, or replaced by another role "
    "or by the centroid of their cluster, compared with a control of each operation.",
    "tensor-product": "The share of the variance of the tensor product of filler and role that "
    "the Hadamard product keeps (section 7 of the paper), compared with other projections.",
}


def analyses(inputs: Inputs) -> list[Section]:
    """Return a section for each analysis of `tpt interpret`, with the results of all models."""
    by_name: dict[str, list[JsonFile]] = {}
    for file in inputs.files:
        if _is_analysis(file):
            by_name.setdefault(_registered(str(file.values["analysis"])), []).append(file)
    known = [name for name in ANALYSES if name in by_name]
    return [
        _section(name, by_name[name], inputs) for name in dict.fromkeys([*known, *sorted(by_name)])
    ]


def _is_analysis(file: JsonFile) -> bool:
    return {"analysis", "model", "sample", "summary"} <= file.values.keys()


def _registered(name: str) -> str:
    """Return the analysis that a result belongs to: `attention-encoder` is of `attention`."""
    names = [known for known in ANALYSES if name == known or name.startswith(f"{known}-")]
    return max(names, key=len, default=name)


def _section(name: str, files: Sequence[JsonFile], inputs: Inputs) -> Section:
    help_text = f"{ANALYSES[name].help}." if name in ANALYSES else ""
    return Section(
        title=name.replace("-", " ").replace("_", " ").capitalize(),
        summary=SUMMARIES.get(name, help_text or "An analysis."),
        body=[part for file in files for part in _checked(file, inputs)],
        sources=[file.path for file in files],
    )


def _checked(file: JsonFile, inputs: Inputs) -> list[Markup]:
    try:
        return _findings(file, inputs)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ResultsError(f"{file.path} is damaged: {error!r:.200}") from error


def _findings(file: JsonFile, inputs: Inputs) -> list[Markup]:
    values = file.values
    model, sample = values["model"], values["sample"]
    steps = "" if model["step"] is None else f" after {int(model['step']):,} steps"
    about = f"{sample['origin']}; analysis seed {values['seed']}; {inputs.shown(file.path)}"
    recorded = values["environment"].get("command")
    return [
        heading(f"{model['name']}{steps}"),
        paragraph(about, "about"),
        bullets(map(str, values["summary"])),
        *map(recorded_table, values.get("tables", ())),
        *_figures(file),
        command(None if recorded is None else str(recorded)),
    ]


def recorded_table(values: dict[str, Any]) -> Markup:
    """Return a table of a JSON file."""
    rows = [[str(cell) for cell in row] for row in values["rows"]]
    heads, notes = [str(head) for head in values["columns"]], [str(values.get("note", ""))]
    return table(Table(title=str(values["title"]), heads=heads, rows=rows, notes=notes))


def _figures(file: JsonFile) -> list[Markup]:
    """Return the figures beside a JSON file that it names; those that are missing are left out."""
    found = []
    for name, caption in file.values.get("captions", {}).items():
        drawn = file.path.with_name(f"{name}.svg")  # raises if the name is a path
        if not drawn.is_file():
            continue
        text = " ".join(str(caption).split())
        below = name if file.values.get("has_captions", True) else text
        found.append(picture(drawn, name, below, f"{name}: {text}"))
    return [element("div", *found, class_="figures")] if found else []
