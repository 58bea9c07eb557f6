"""The figures of docs/findings.md, from the values of docs/update_findings.py."""

from typing import TYPE_CHECKING, Any

from tp_transformer.foundation import figures

if TYPE_CHECKING:
    from update_findings import Found

IN_ROW = 4  # panels
TEXT, FREQUENT = figures.COLOURS[2], "#909090"


def best_probe(values: dict[str, Any], label: str, layer: int | None = None) -> dict[str, Any]:
    """Return the score of the head that predicts a label best, of all layers or of one."""
    own = [
        score
        for score in values["scores"]
        if score["label"] == label and score["probe"] and layer in {None, score["layer"]}
    ]
    return max(own, key=lambda score: score["probe"]["accuracy"])


def scored_labels(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the labels that the probes of a result predict, by name."""
    return {label["name"]: label for label in values["labels"] if label["obstacle"] is None}


def text_probe(label: dict[str, Any]) -> dict[str, Any]:
    """Return the best text probe of a label."""
    return max(label["readers"].values(), key=lambda probe: probe["accuracy"])


def plot_probes(names: list[str], found: "Found", modules: tuple[str, ...]) -> "figures.Figure":
    """Plot the accuracy of the best head of each layer, a panel for each label and module."""
    panels = [
        (module, label)
        for module in modules
        for label in scored_labels(found[names[0], "roles", module])
    ]
    n_rows = -(-len(panels) // IN_ROW)
    with figures.blank(figures.PAGE, 1.25 * n_rows + 0.5) as drawn:
        grid = drawn.subplots(n_rows, IN_ROW, squeeze=False, sharex=True, sharey=True)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for (module, label), axes in zip(panels, grid.flat, strict=False):
            _draw_panel(axes, names, found, module, label)
        for axes in grid[:, 0]:
            axes.set_ylabel("accuracy")
        for axes in grid.flat[len(panels) - IN_ROW : len(panels)]:
            axes.set_xlabel("encoder layer")
            axes.tick_params(labelbottom=True)
        handles, titles = grid.flat[0].get_legend_handles_labels()
        drawn.legend(handles, titles, loc="outside upper center", ncols=len(titles))
        return drawn


def _draw_panel(
    axes: "figures.Axes", names: list[str], found: "Found", module: str, label: str
) -> None:
    """Draw the models, the best untrained heads, the text probe and the most frequent label."""
    n_layers = 1 + max(score["layer"] for score in found[names[0], "roles", module]["scores"])
    for number, name in enumerate(names):
        values = found[name, "roles", module]
        labels = scored_labels(values)
        if label not in labels:
            continue
        best = [best_probe(values, label, layer)["probe"] for layer in range(n_layers)]
        heights = [probe["accuracy"] for probe in best]
        ends = [
            [abs(probe["interval"][end] - probe["accuracy"]) for probe in best] for end in (0, 1)
        ]
        look = {"color": figures.COLOURS[number], "markersize": 3, "linewidth": 1}
        at = [layer + 0.08 * number for layer in range(n_layers)]
        axes.errorbar(at, heights, ends, marker="o", label=f"{name}, {values['vectors']}s", **look)
        initial = max(probe["accuracy"] for probe in labels[label]["initial"])
        axes.axhline(initial, linestyle=":", label=f"untrained {name}", **look)
    if label in scored_labels(found[names[0], "roles", module]):
        own = scored_labels(found[names[0], "roles", module])[label]
        axes.axhline(text_probe(own)["accuracy"], linestyle="--", color=TEXT, label="text probe")
    majority = best_probe(found[names[0], "roles", module], label)["probe"]["majority"]
    axes.axhline(majority, linestyle="-.", color=FREQUENT, linewidth=1, label="most frequent label")
    axes.set_title(f"{label}\n{module}")
    axes.set_ylim(0, 1.05)
    axes.set_xticks(range(n_layers))


def plot_relations(
    names: list[str], rows: list[tuple[str, list[dict[str, Any]]]], least: float
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
