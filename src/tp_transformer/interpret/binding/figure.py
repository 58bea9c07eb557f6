"""The figure of the binding analysis: how far exchanged numbers move a state."""

from typing import Any

import numpy as np

from tp_transformer.foundation import figures
from tp_transformer.interpret.binding.result import (
    CONFUSABLE,
    CONTROL,
    NEIGHBOURS,
    BindingResult,
)
from tp_transformer.interpret.binding.simplified import ATTENTIONS, Simplified


def plot(result: BindingResult) -> "dict[str, figures.Figure]":
    """Plot the simplified network above the model."""
    with figures.blank(figures.COLUMN, 1.0) as drawn:
        upper, lower = drawn.subplots(2, 1)
        _draw_simplified(upper, result.simplified)
        _draw_exchanges(lower, result)
        lines = [*_reading(result), result.context.caption]
        below = figures.caption(drawn, " ".join(lines))
        drawn.set_figheight(3.9 + below)
        return {"binding": drawn}


def _reading(result: BindingResult) -> list[str]:
    """Explain the lines on the bars, and state the ratio of the bars."""
    has_interval = any(exchange.at_operator_interval for exchange in result.exchanges)
    lines = ["Lines on bars: 95% intervals over questions."] if has_interval else []
    if result.ratio is not None and result.initial_ratios:
        low, high = min(result.initial_ratios), max(result.initial_ratios)
        lines.append(
            f"Confusable exchanges move the state {result.ratio} as far as the control; in "
            f"untrained models, {low:.2f} to {high:.2f} times."
        )
    return lines


def _draw_simplified(axes: "figures.Axes", found: Simplified) -> None:
    smallest = 1e-18  # where a distance of zero is drawn
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
    # Not as powers, whose exponents would be too small to read.
    axes.set_yticks([1e-15, 1e-10, 1e-5, 1], ["1e-15", "1e-10", "1e-5", "1"])
    axes.set_yticks([], minor=True)
    axes.set_xlabel("d_model (median, minimum, maximum;\n0 is at the bottom)")
    axes.set_ylabel("relative distance\nof the two structures")
    axes.set_title("Simplified network: (a/b)/(c/d), (a/d)/(c/b)")
    axes.legend(loc="center right")


def _draw_exchanges(axes: "figures.Axes", result: BindingResult) -> None:
    kinds = (("confusable", CONFUSABLE), ("control", CONTROL), ("neighbours", NEIGHBOURS))
    found = {exchange.letters: exchange for exchange in result.exchanges}
    ticks = []
    for colour, (label, letters) in enumerate(kinds):
        places = np.arange(2) + 2.5 * colour
        own = [found[pair] for pair in letters]
        heights = [exchange.at_operator for exchange in own]
        limits = [exchange.at_operator_interval or (exchange.at_operator,) * 2 for exchange in own]
        axes.bar(
            places,
            heights,
            0.8,
            yerr=np.abs(np.array(limits).T - heights),
            color=figures.COLOURS[colour],
            error_kw={"elinewidth": 0.8, "ecolor": "#303030"},
            label=label,
        )
        for place, exchange, (_, high) in zip(places, own, limits, strict=True):
            if exchange.n_answered:
                text = f"{exchange.n_same / exchange.n_answered:.0%}"
                axes.text(place, high, text, ha="center", va="bottom", fontsize=figures.SMALLEST)
            ticks.append((place, f"{exchange.letters[0]} ↔ {exchange.letters[1]}"))
    axes.set_xticks(*zip(*ticks, strict=True))
    axes.margins(y=0.3)
    axes.grid(axis="x", visible=False)
    n = result.exchanges[0].n_answered  # before the exchange, so the same for all
    counts = f"\n(above: same answer as before,\nof {n} answered)" if n else ""
    axes.set_xlabel(f"numbers exchanged{counts}")
    axes.set_ylabel(f"relative distance at the\nouter operator, layer {result.layer}")
    axes.set_title("This model: (a/b)/(c/d)")
    axes.legend(loc="upper center", ncols=3)
