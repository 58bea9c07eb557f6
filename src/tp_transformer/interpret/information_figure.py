"""The figure of information: a bar for each head, beside what it has to be compared with."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tp_transformer import figures
from tp_transformer.interpret.information_result import Information, StateInformation
from tp_transformer.interpret.outcome import Context
from tp_transformer.published import RECONSTRUCTION_ERROR

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLES = {"input": "state that the values are made of", "output": "state that the layer hands on"}


def draw(shown: Sequence[tuple[Information, Context]], folder: Path) -> list[Path]:
    """The heads of each model and state; returns the files."""
    with figures.blank(3.5 * max(len(shown), 2), 5.0) as drawn:
        # One model has its two states side by side, several have a column each.
        shape = (1, 2) if len(shown) == 1 else (2, len(shown))
        if len(shown) == 1:
            drawn.set_figheight(2.9)
        axes = drawn.subplots(*shape, sharey=True, squeeze=False).T.reshape(-1)
        panels = [(one, context, state) for one, context in shown for state in one.states]
        for place, (one, context, state) in zip(axes, panels, strict=True):
            _draw(place, state)
            name = f"{context.model['name']}, " if len(shown) > 1 else ""
            place.set_title(f"{name}layer {one.layer}:\n{_TITLES[state.name]}", fontsize=8)
            place.set_xlabel(f"head\n{_errors(one, state)}", fontsize=7)
        for place in drawn.axes:
            if place.get_subplotspec().is_first_col():  # type: ignore[union-attr]
                place.set_ylabel("R² of the reconstruction")
        handles, labels = axes[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=7)
        figures.caption(drawn, " | ".join(context.caption for _, context in shown))
        return figures.save(drawn, folder, "information")


def _errors(found: Information, state: StateInformation) -> str:
    """The errors beside the paper's, which the R2 of the panel does not show."""
    ours, sound = state.in_sample, state.held_out
    held = "" if sound is None else f", {sound.mse.mean():.3f} held out"
    paper = RECONSTRUCTION_ERROR[found.kind]
    return f"MSE {ours.mse.mean():.3f} in sample (the paper's: {paper}){held}"


def _draw(axes: "Axes", state: StateInformation) -> None:
    """A bar for each head, with the lines that it has to be compared with.

    What is in sample is orange: its optimum and its random vectors are others than those held out.
    """
    blue, orange, green, *_ = figures.COLOURS
    ours, sound = state.in_sample, state.held_out
    heads = np.arange(len(ours.r2))
    if sound is not None:
        limits = sound.r2_intervals
        reach = None if limits is None else np.abs(np.array(limits).T - sound.r2)
        ends = {"elinewidth": 0.8, "ecolor": "#303030"}
        axes.bar(heads, sound.r2, 0.6, yerr=reach, color=blue, error_kw=ends, label="held out")
    axes.plot(heads, ours.r2, "D", color=orange, markersize=4, label=f"in sample, n = {ours.n}")
    if sound is not None:
        axes.axhline(sound.optimum_r2, color=blue, linewidth=1.2, label="held out, optimum (PCA)")
        axes.axhspan(*sound.random_map_range, color=green, alpha=0.2, linewidth=0)
        axes.axhline(
            sound.random_map_r2,
            color=green,
            linewidth=1.2,
            linestyle="--",
            label="held out, random maps (range)",
        )
    axes.axhline(ours.optimum_r2, color=orange, linewidth=1.2, label="in sample, optimum (PCA)")
    axes.axhline(
        ours.control_r2,
        color=orange,
        linewidth=1.2,
        linestyle=":",
        label="in sample, random vectors",
    )
    axes.set_xticks(heads)
    axes.set_ylim(top=1.04)
    axes.grid(axis="x", visible=False)
