"""The figure of the surgery analysis: the share of changed answers for each target."""

import numpy as np

from tp_transformer.foundation import figures
from tp_transformer.interpret.surgery.result import OPERATIONS, SurgeryResult


def plot(result: SurgeryResult) -> "dict[str, figures.Figure]":
    """Plot a row for each target and a mark for each operation."""
    targets = list(dict.fromkeys(effect.target.name for effect in result.effects))
    controls = {effect.target.name for effect in result.effects if effect.target.is_control}
    with figures.figure(figures.COLUMN, 1.0) as (drawn, axes):
        for number, operation in enumerate(OPERATIONS):
            own = [effect for effect in result.effects if effect.operation == operation]
            shares = np.array([effect.share for effect in own])
            limits = np.array([effect.interval for effect in own]).T
            shift = (number - (len(OPERATIONS) - 1) / 2) * 0.1
            # Operations come in pairs; the mark of the second is hollow.
            colour = figures.COLOURS[number // 2]
            axes.errorbar(
                100 * shares,
                np.arange(len(targets)) + shift,
                xerr=100 * np.abs(limits - shares),
                fmt="osD^"[number // 2],
                color=colour,
                markerfacecolor="white" if number % 2 else colour,
                markersize=3,
                elinewidth=0.8,
                label=operation,
            )
        for place in range(1, len(targets)):
            axes.axhline(place - 0.5, color="#e0e0e0", linewidth=0.6)
        names = [f"{name} (control)" if name in controls else name for name in targets]
        axes.set_yticks(range(len(targets)), [figures.broken(name, 0.8) for name in names])
        axes.set_ylim(len(targets) - 0.5, -0.5)
        most = max(100 * effect.interval[1] for effect in result.effects)
        axes.set_xlim(-0.02 * most, 1.02 * most)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"changed answers of {result.n}, %\n(95% Wilson intervals)")
        changed = (
            "Changed: another token is the likeliest at some position of the answer, given the "
            f"right tokens before it; {result.right} of {result.n} were right before"
        )
        title = f"Surgery on the roles of encoder layer {result.layer},\n{result.place}"
        drawn.legend(loc="outside upper center", ncols=3, title=title)
        below = figures.caption(drawn, f"{changed}. {result.context.caption}")
        drawn.set_figheight(0.5 * len(targets) + below + 0.95)
        return {"surgery": drawn}
