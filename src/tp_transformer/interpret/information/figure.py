"""The figure of the information analysis: a bar for each head, beside its controls."""

import numpy as np

from tp_transformer.foundation import figures
from tp_transformer.interpret.information.result import InformationResult, StateInformation
from tp_transformer.published import RECONSTRUCTION_ERROR

TITLES = {"input": "input of the\nvalue map", "output": "output of the\nlayer"}


def plot(found: InformationResult) -> "dict[str, figures.Figure]":
    """Plot the heads of each model in a row, and of each state in a column."""
    shown = found.models
    with figures.blank(figures.COLUMN, 1.0) as drawn:
        grid = drawn.subplots(len(shown), 2, sharey=True, squeeze=False)
        for row, result in zip(grid, shown, strict=True):
            for axes, state in zip(row, result.states, strict=True):
                _draw(axes, state)
                axes.set_xlabel(f"head\n{_errors(result, state)}", fontsize=figures.SMALLEST)
            model = result.context.model["name"]
            name = figures.broken(f"{model}, layer {result.layer}", 1.2)
            row[0].set_ylabel(name, parse_math=False)
        for axes, title in zip(grid[0], TITLES.values(), strict=True):
            axes.set_title(title)
        drawn.supylabel("R² of the reconstruction", fontsize=7)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        named = dict(sorted(zip(labels, handles, strict=True)))  # grouped by protocol
        drawn.legend(named.values(), named.keys(), loc="outside upper center", ncols=2)
        captions = " | ".join(result.context.caption for result in shown)
        below = figures.caption(drawn, f"Green: the range of random maps. {captions}")
        drawn.set_figheight(2.25 * len(shown) + below + 0.8)
        return {"information": drawn}


def _errors(result: InformationResult, state: StateInformation) -> str:
    """Return the errors beside the paper's, which the R2 of the panel does not show."""
    ours = "\n".join(
        f"{found.mse.mean():.3f} ({found.n} {found.reading})" for found in state.readings
    )
    sound = state.held_out
    held = "" if sound is None else f"\n{sound.mse.mean():.3f} (held out)"
    return f"mean squared error\n{ours}{held}\n{RECONSTRUCTION_ERROR[result.kind]} (the paper's)"


def _draw(axes: "figures.Axes", state: StateInformation) -> None:
    """Draw a bar for each head, with the controls as lines.

    Each reading of the paper's protocol has its own optimum and random vectors.
    """
    blue, orange, green, pink, *_ = figures.COLOURS
    heads = np.arange(len(state.by_positions.r2))
    sound = state.held_out
    if sound is not None:
        limits = sound.r2_intervals
        reach = None if limits is None else np.abs(np.array(limits).T - sound.r2)
        ends = {"elinewidth": 0.8, "ecolor": "#303030"}
        axes.bar(heads, sound.r2, 0.6, yerr=reach, color=blue, error_kw=ends, label="held out")
        axes.axhline(sound.optimum_r2, color=blue, linewidth=1, label="held out, optimum (PCA)")
        axes.axhspan(*sound.random_map_range, color=green, alpha=0.2, linewidth=0)
        axes.axhline(
            sound.random_map_r2,
            color=green,
            linewidth=1,
            linestyle="--",
            label="held out, random maps",
        )
    for found, colour, marker in zip(state.readings, (orange, pink), "Ds", strict=True):
        name = f"{found.n} {found.reading}"
        axes.plot(heads, found.r2, marker, color=colour, markersize=3, label=name, linestyle="")
        axes.axhline(found.optimum_r2, color=colour, linewidth=1, label=f"{name}, optimum (PCA)")
        axes.axhline(
            found.control_r2,
            color=colour,
            linewidth=1,
            linestyle=":",
            label=f"{name}, random vectors",
        )
    axes.set_xticks(figures.tick_indices(len(heads), 8))
    axes.set_ylim(top=1.04)
    axes.grid(axis="x", visible=False)
