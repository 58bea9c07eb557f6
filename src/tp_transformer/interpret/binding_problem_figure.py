"""The figure of the binding problem: how far exchanged numbers move a state."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tp_transformer import figures
from tp_transformer.interpret.binding_problem_result import (
    CONFUSABLE,
    CONTROL,
    NEIGHBOURS,
    Binding,
)
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.simplified import ATTENTIONS, Simplified

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(result: Binding, context: Context, folder: Path) -> list[Path]:
    """The simplified network and the model, one below the other; returns the files."""
    with figures.blank(figures.COLUMN, 1.0) as drawn:
        upper, lower = drawn.subplots(2, 1)
        _draw_simplified(upper, result.simplified)
        _draw_exchanges(lower, result)
        lines = [*_reading(result), context.caption(result.seed)]
        below = figures.caption(drawn, " ".join(lines))
        drawn.set_figheight(3.9 + below)
        return figures.save(drawn, folder, "binding")


def _reading(result: Binding) -> list[str]:
    """What the bars' lines are, and what the bars come to."""
    has_interval = any(one.at_operator_interval for one in result.exchanges)
    lines = ["Lines on bars: 95% intervals over questions."] if has_interval else []
    if result.ratio is not None and result.initial_ratios:
        low, high = min(result.initial_ratios), max(result.initial_ratios)
        lines.append(
            f"Confusable exchanges move the state {result.ratio} as far as the control; with "
            f"initial weights, {low:.2f} to {high:.2f} times."
        )
    return lines


def _draw_simplified(axes: "Axes", found: Simplified) -> None:
    smallest = 1e-18  # where a distance of exactly zero is drawn
    marks = zip(ATTENTIONS.items(), ("s", "o", "x"), (1, 0, 2), strict=True)
    for (name, label), mark, colour in marks:
        distances = np.maximum(found.distances[name], smallest)
        middle = np.median(distances, axis=1)
        reach = [middle - distances.min(axis=1), distances.max(axis=1) - middle]
        style: dict[str, Any] = {"marker": mark, "markersize": 3, "linewidth": 1, "capsize": 2}
        axes.errorbar(
            found.sizes, middle, reach, color=figures.COLOURS[colour], label=label, **style
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(found.sizes, [str(size) for size in found.sizes])
    axes.set_yscale("log")
    axes.set_ylim(smallest, 1e3)
    # Not as powers, whose exponents would be smaller than can be read.
    axes.set_yticks([1e-15, 1e-10, 1e-5, 1], ["1e-15", "1e-10", "1e-5", "1"])
    axes.set_yticks([], minor=True)
    axes.set_xlabel("d_model (median, least, greatest;\n0 is at the bottom)")
    axes.set_ylabel("relative distance\nof the two structures")
    axes.set_title("Simplified network: (a/b)/(c/d), (a/d)/(c/b)")
    axes.legend(loc="center right")


def _draw_exchanges(axes: "Axes", result: Binding) -> None:
    kinds = (("confusable", CONFUSABLE), ("control", CONTROL), ("neighbours", NEIGHBOURS))
    found = {one.letters: one for one in result.exchanges}
    ticks = []
    for colour, (label, letters) in enumerate(kinds):
        places = np.arange(2) + 2.5 * colour
        own = [found[two] for two in letters]
        heights = [one.at_operator for one in own]
        limits = [one.at_operator_interval or (one.at_operator,) * 2 for one in own]
        axes.bar(
            places,
            heights,
            0.8,
            yerr=np.abs(np.array(limits).T - heights),
            color=figures.COLOURS[colour],
            error_kw={"elinewidth": 0.8, "ecolor": "#303030"},
            label=label,
        )
        for place, one, (_, high) in zip(places, own, limits, strict=True):
            if one.n_answered:
                text = f"{one.n_same / one.n_answered:.0%}"
                axes.text(place, high, text, ha="center", va="bottom", fontsize=figures.SMALLEST)
            ticks.append((place, f"{one.letters[0]} ↔ {one.letters[1]}"))
    axes.set_xticks(*zip(*ticks, strict=True))
    axes.margins(y=0.3)
    axes.grid(axis="x", visible=False)
    n = result.exchanges[0].n_answered  # before an exchange, so of all alike
    counts = f"\n(above: same answer as before,\nof {n} answered)" if n else ""
    axes.set_xlabel(f"numbers exchanged{counts}")
    axes.set_ylabel(f"relative distance at the\nouter operator, layer {result.layer}")
    axes.set_title("This model: (a/b)/(c/d)")
    axes.legend(loc="upper center", ncols=3)
