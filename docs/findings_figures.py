"""The figures of docs/findings.md, from the values of docs/update_findings.py."""

from typing import Any

from tp_transformer.foundation import figures

Values = dict[str, Any]
IN_ROW = 4  # panels
SERIES = (0, 4, 1, 5)  # colours: two shades of blue, two of orange


def best_probe(values: Values, label: str, layer: int | None = None) -> Values:
    """Return the score of the head that predicts a label best, of all layers or of one."""
    own = [
        score
        for score in values["scores"]
        if score["label"] == label and score["probe"] and layer in {None, score["layer"]}
    ]
    return max(own, key=lambda score: score["probe"]["accuracy"])


def scored_labels(values: Values) -> dict[str, Values]:
    """Return the labels that the probes of a result predict, by name."""
    return {label["name"]: label for label in values["labels"] if label["obstacle"] is None}


def text_probe(label: Values) -> Values:
    """Return the best text probe of a label."""
    return max(label["readers"].values(), key=lambda probe: probe["accuracy"])


def plot_probes(series: dict[str, dict[str, Values]], modules: tuple[str, ...]) -> "figures.Figure":
    """Plot the accuracy of the best head of each layer, a panel for each label and module."""
    first = next(iter(series.values()))
    panels = [(module, label) for module in modules for label in scored_labels(first[module])]
    n_rows = -(-len(panels) // IN_ROW)
    with figures.blank(figures.PAGE, 1.25 * n_rows + 0.5) as drawn:
        grid = drawn.subplots(n_rows, IN_ROW, squeeze=False, sharey=True)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for (module, label), axes in zip(panels, grid.flat, strict=False):
            _draw_panel(axes, {title: own[module] for title, own in series.items()}, label)
            axes.set_title(f"{label}\n{module}")
        drawn.supxlabel("encoder layer", fontsize=figures.STYLE["axes.labelsize"])
        drawn.supylabel("accuracy of the best head", fontsize=figures.STYLE["axes.labelsize"])
        handles, titles = grid.flat[0].get_legend_handles_labels()
        drawn.legend(handles, titles, loc="outside upper center", ncols=-(-len(titles) // 2))
        return drawn


def _draw_panel(axes: "figures.Axes", series: dict[str, Values], label: str) -> None:
    """Draw a line for each series, and the controls of the first one."""
    first = next(iter(series.values()))
    own = scored_labels(first)[label]
    controls = {
        "untrained": max(probe["accuracy"] for probe in own["initial"]),
        "text probe": text_probe(own)["accuracy"],
        "most frequent label": best_probe(first, label)["probe"]["majority"],
    }
    for number, (title, values) in enumerate(series.items()):
        if label not in scored_labels(values):
            continue
        layers = sorted({score["layer"] for score in values["scores"]})
        best = [best_probe(values, label, layer)["probe"] for layer in layers]
        accuracy = [probe["accuracy"] for probe in best]
        low, high = zip(*(probe["interval"] for probe in best), strict=True)
        below = [middle - end for middle, end in zip(accuracy, low, strict=True)]
        above = [end - middle for middle, end in zip(accuracy, high, strict=True)]
        axes.errorbar(
            [layer + 0.08 * (number - 1) for layer in layers],
            accuracy,
            [below, above],
            marker="o",
            color=figures.COLOURS[SERIES[number]],
            markersize=2.5,
            linewidth=1,
            label=title,
        )
        axes.set_xticks(layers)
    for (title, height), line in zip(controls.items(), (":", "--", "-."), strict=True):
        axes.axhline(height, linestyle=line, color="#606060", linewidth=0.8, label=title)
    axes.set_ylim(0, 1.05)


def plot_relations(
    names: list[str], rows: list[tuple[str, list[Values]]], least: float
) -> "figures.Figure":
    """Plot the margin of the best head of each model for each relation, and the thresholds."""
    with figures.figure(figures.PAGE, 0.24 * len(rows) + 0.7) as (drawn, axes):
        for row, (_, rankings) in enumerate(rows):
            for number, ranking in enumerate(rankings):
                best = ranking["best"]
                y, colour = row + 0.3 * (number - 0.5), figures.COLOURS[number]
                ends = [100 * end for end in best["interval"]]
                axes.plot(ends, [y, y], color=colour, linewidth=3, alpha=0.35)
                face = colour if best["is_clear"] else "white"
                axes.plot(100 * best["margin"], y, "o", color=colour, mfc=face, markersize=4)
                limit = 100 * max(ranking["initial"], least)
                axes.plot(limit, y, marker="|", color="black", markersize=7)
        axes.set_yticks(range(len(rows)), [title for title, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("attention beyond the largest baseline, in points")
        for number, name in enumerate(names):
            axes.plot([], [], "o", color=figures.COLOURS[number], markersize=4, label=name)
        axes.plot([], [], "|", color="black", markersize=7, label="threshold")
        drawn.legend(loc="outside upper center", ncols=len(names) + 1)
        return drawn
