"""The figure of role surgery: the share of changed answers, target by target."""

from pathlib import Path

import numpy as np

from tp_transformer import figures
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.surgery_result import OPERATIONS, Surgery


def draw(result: Surgery, context: Context, folder: Path) -> list[Path]:
    """A row for each target, a mark for each operation; returns the files."""
    targets = list(dict.fromkeys(one.target.name for one in result.effects))
    controls = {one.target.name for one in result.effects if one.target.is_control}
    with figures.figure(figures.COLUMN, 1.0) as (drawn, axes):
        for number, operation in enumerate(OPERATIONS):
            own = [one for one in result.effects if one.operation == operation]
            shares = np.array([one.share for one in own])
            limits = np.array([one.interval for one in own]).T
            shift = (number - (len(OPERATIONS) - 1) / 2) * 0.1
            # Operations come in twos, of which the second is hollow.
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
        most = max(100 * one.interval[1] for one in result.effects)
        axes.set_xlim(-0.02 * most, 1.02 * most)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"changed answers of {result.n}, %\n(95% Wilson intervals)")
        changed = (
            "Changed: another symbol is likeliest at some position of the answer, the right ones "
            f"before it being given; {result.right} of {result.n} were right before"
        )
        title = f"Surgery on the roles of encoder layer {result.layer},\n{result.place}"
        drawn.legend(loc="outside upper center", ncols=3, title=title)
        below = figures.caption(drawn, f"{changed}. {context.caption(result.seed)}")
        drawn.set_figheight(0.5 * len(targets) + below + 0.95)
        return figures.save(drawn, folder, "surgery")
