"""The section of `tpt bench`: bindings compared at one budget."""

from tp_transformer.errors import ResultsError
from tp_transformer.show.report.analyses import recorded_table
from tp_transformer.show.report.inputs import BENCH_FORMAT, Inputs, JsonFile
from tp_transformer.show.report.markup import Section, command, element, paragraph, picture


def bench(inputs: Inputs) -> list[Section]:
    """Return a section for each bench."""
    found = [file for file in inputs.files if file.values.get("format") == BENCH_FORMAT]
    return [_section(file, inputs) for file in found]


def _section(file: JsonFile, inputs: Inputs) -> Section:
    values, body = file.values, [paragraph(inputs.shown(file.path), "about")]
    try:
        body += map(recorded_table, values["tables"])
        made = values.get("made", {}).get("command")
        reference = values["reference"]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ResultsError(f"{file.path} is damaged: {error!r:.200}") from error
    drawn = file.path.with_suffix(".svg")
    if drawn.is_file():
        caption = "Accuracy of each seed, and the mean over seeds"
        body.append(element("div", picture(drawn, "bench", caption, caption), class_="figures"))
    return Section(
        title="Bench",
        summary="Bindings of filler and role, trained on the same samples at one budget, and "
        f"their differences from “{reference}”.",
        body=[*body, command(None if made is None else str(made))],
        sources=[file.path],
    )
