"""Sections of analyses and of benches: what each found, its tables and its figures."""

from collections.abc import Sequence

from tp_transformer.errors import ResultsError
from tp_transformer.html import Markup, element, paragraph
from tp_transformer.interpret.analyses import ANALYSES
from tp_transformer.runtime.provenance import Values
from tp_transformer.show.inputs import BENCH_FORMAT, Inputs, JsonFile
from tp_transformer.show.sections import Section, bullets, command, heading, picture, table
from tp_transformer.table import Table

_DAMAGE = (LookupError, TypeError, ValueError, AttributeError)


def analyses(inputs: Inputs) -> list[Section]:
    """Return a section for each analysis of `tpt interpret`, with the results of all models."""
    by_name: dict[str, list[JsonFile]] = {}
    for file in inputs.files:
        if {"analysis", "model", "sample", "summary"} <= file.values.keys():
            by_name.setdefault(_registered(str(file.values["analysis"])), []).append(file)
    known = [name for name in ANALYSES if name in by_name]
    names = dict.fromkeys([*known, *sorted(by_name)])
    return [_analysis(name, by_name[name], inputs) for name in names]


def _registered(name: str) -> str:
    """Return the analysis that a result belongs to: `attention-encoder` is of `attention`."""
    names = [known for known in ANALYSES if name == known or name.startswith(f"{known}-")]
    return max(names, key=len, default=name)


def _analysis(name: str, files: Sequence[JsonFile], inputs: Inputs) -> Section:
    body: list[Markup] = []
    for file in files:
        try:
            body += _findings(file, inputs)
        except _DAMAGE as error:
            raise ResultsError(f"{file.path} is damaged: {error!r:.200}") from error
    return Section(
        title=name.replace("-", " ").replace("_", " ").capitalize(),
        summary=ANALYSES[name].about if name in ANALYSES else "An analysis.",
        body=body,
        sources=[file.path for file in files],
    )


def _findings(file: JsonFile, inputs: Inputs) -> list[Markup]:
    values = file.values
    model, sample = values["model"], values["sample"]
    steps = "" if model["step"] is None else f" after {int(model['step']):,} steps"
    about = f"{sample['origin']}; analysis seed {values['seed']}; {inputs.shown(file.path)}"
    return [
        heading(f"{model['name']}{steps}"),
        paragraph(about, "about"),
        bullets(map(str, values["summary"])),
        *map(_table, values.get("tables", ())),
        *_figures(file),
        command(values["environment"].get("command")),
    ]


def _table(values: Values) -> Markup:
    """Return a table of a JSON file."""
    rows = [[str(cell) for cell in row] for row in values["rows"]]
    heads, notes = [str(head) for head in values["columns"]], [str(values.get("note", ""))]
    return table(Table(title=str(values["title"]), heads=heads, rows=rows, notes=notes))


def _figures(file: JsonFile) -> list[Markup]:
    """Return the figures beside a JSON file that it names; those that are missing are left out."""
    pictures = []
    for name, caption in file.values.get("captions", {}).items():
        image = file.path.with_name(f"{name}.svg")  # raises if the name is a path
        if image.is_file():
            text = " ".join(str(caption).split())
            below = name if file.values.get("has_captions", True) else text
            pictures.append(picture(image, name, below, f"{name}: {text}"))
    return [element("div", *pictures, class_="figures")] if pictures else []


def bench(inputs: Inputs) -> list[Section]:
    """Return a section for each bench of `tpt bench`: bindings compared at one budget."""
    files = [file for file in inputs.files if file.values.get("format") == BENCH_FORMAT]
    return [_bench(file, inputs) for file in files]


def _bench(file: JsonFile, inputs: Inputs) -> Section:
    values, body = file.values, [paragraph(inputs.shown(file.path), "about")]
    try:
        body += map(_table, values["tables"])
        recorded = values.get("made", {}).get("command")
        reference = values["reference"]
    except _DAMAGE as error:
        raise ResultsError(f"{file.path} is damaged: {error!r:.200}") from error
    image = file.path.with_suffix(".svg")
    if image.is_file():
        caption = "Accuracy of each seed, and the mean over seeds"
        body.append(element("div", picture(image, "bench", caption, caption), class_="figures"))
    return Section(
        title="Bench",
        summary="Bindings of filler and role, trained on the same samples at one budget, and "
        f"their differences from “{reference}”.",
        body=[*body, command(recorded)],
        sources=[file.path],
    )
