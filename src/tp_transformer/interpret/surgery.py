"""Role surgery: what becomes of the answers when role vectors are removed, replaced or exchanged.

Of a TP-Transformer's encoder layer, the roles of some heads are operated on at all positions or at
chosen ones, and the answers are judged by one pass under teacher forcing, as everywhere. Operations
come in twos, the second being there to compare the first with:

- `zero`: nothing is bound; `random`: a random vector of the same length in the role's place;
- `centroid`: the centre of the role's cluster, so that only the cluster is left; `as far`: the role
  moved as far as its centroid is, but in a random direction;
- `within clusters`: roles of the same cluster and question exchange their places, two by two;
  `across clusters`: as many roles of different clusters do.

If clusters are what roles are about (section 5.1), `centroid` changes fewer answers than `as far`,
and `within clusters` fewer than `across clusters`. The latter also moves roles further, so beside
each effect stands how far the roles were moved. Heads are compared with each other, or chosen ones
with as many others drawn at random; chosen positions with as many others of the same question.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tp_transformer import figures
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.interpret import outcome
from tp_transformer.interpret.clusters import cluster
from tp_transformer.interpret.operations import (
    Asked,
    Floats,
    Ids,
    Operation,
    as_far,
    ask,
    at,
    exchanges,
    moved_to,
    nearest,
    randomised,
    reordered,
    role_of,
    zeroed,
)
from tp_transformer.interpret.outcome import Context, Values
from tp_transformer.interpret.record import (
    Sample,
    chosen_layer,
    record,
    symbols,
    transformer_of,
)
from tp_transformer.model.family import AnyModel
from tp_transformer.scoring.statistics import Interval, resample, wilson

OPERATIONS = (
    "zero",
    "random",
    "centroid",
    "as far",
    "within clusters",
    "across clusters",
)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where an operation takes place."""

    name: str
    heads: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...] | None  # of each question; None is all of them
    is_control: bool


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What an operation does to the answers.

    Attributes:
        target: where
        operation: what, one of OPERATIONS
        right: answers that are right after it
        changed: answers that are not what they were
        changed_interval: of the share of changed answers, 95% (Wilson)
        surprise: how much less likely right answers became, in nats per question
        surprise_interval: 95%, questions drawn anew; None for a single question
        moved: how far the roles were moved, as a share of their lengths
    """

    target: Target
    operation: str
    right: int
    changed: int
    changed_interval: Interval
    surprise: float
    surprise_interval: Interval | None
    moved: float


@dataclass(frozen=True, kw_only=True)
class Surgery:
    """What operations on the roles of an encoder layer do to the answers."""

    layer: int
    n: int  # questions
    n_clusters: int
    right: int  # answers that are right without any operation
    effects: tuple[Effect, ...]

    def to_values(self) -> Values:
        """The numbers as JSON has them."""
        return {
            "layer": self.layer,
            "n": self.n,
            "n_clusters": self.n_clusters,
            "right": self.right,
            "effects": [
                {
                    "target": one.target.name,
                    "heads": one.target.heads,
                    "positions": one.target.positions,
                    "is_control": one.target.is_control,
                    "operation": one.operation,
                    "right": one.right,
                    "changed": one.changed,
                    "changed_share": one.changed / self.n,
                    "changed_interval": one.changed_interval,
                    "surprise": one.surprise,
                    "surprise_interval": one.surprise_interval,
                    "moved": one.moved,
                }
                for one in self.effects
            ],
            "meaning": self.meaning,
        }

    @property
    def meaning(self) -> list[str]:
        """What happened, in a line for each target."""
        lines = [
            f"Encoder layer {self.layer}, {self.n} questions, of which {self.right} are answered "
            f"correctly without surgery; {self.n_clusters} clusters for each head. Changed answers "
            "(and how far the roles were moved, as a share of their lengths):"
        ]
        names = dict.fromkeys(one.target.name for one in self.effects)
        for name in names:
            own = [one for one in self.effects if one.target.name == name]
            shares = (
                f"{one.operation} {one.changed / self.n:.0%} ({one.moved:.2f})" for one in own
            )
            lines.append(f"{name}: {', '.join(shares)}")
        return lines


def analyse(
    model: AnyModel,
    sample: Sample,
    *,
    layer: int = -1,
    heads: Sequence[int] | None = None,
    positions: Sequence[Sequence[int]] | None = None,
    n_clusters: int = 20,
    n_controls: int = 3,
    seed: int = 0,
) -> Surgery:
    """Operate on the roles of an encoder layer and see what becomes of the answers.

    Args:
        model: a TP-Transformer
        sample: questions and answers
        layer: of the encoder
        heads: operated on together, beside random sets of as many others; each for itself and all
            together if None
        positions: source positions of each question, 0 being the start symbol, beside as many
            others; all if None. An exchange then brings them the roles of their partners,
            wherever these stand
        n_clusters: of the roles of each head, by k-means
        n_controls: how many random sets of other heads
        seed: of the clusters and of everything that is drawn
    """
    model = transformer_of(model)
    if model.config.binding == "none":
        raise UserError("there are no roles to operate on: this model's attention has none")
    if n_clusters < 1:
        raise SettingsError(f"roles need at least 1 cluster, not {n_clusters}")
    layer = chosen_layer(model, layer)
    rng = np.random.default_rng(seed)
    targets = _targets(model.config.n_heads, sample, heads, positions, n_controls, rng)
    found = record(model, sample, [role_of(layer)])
    roles = [piece.astype(np.float64) for piece in found[role_of(layer)]]  # by question
    centroids = _centroids(np.concatenate(roles, axis=1), n_clusters, seed)
    clusters = [nearest(own, centroids) for own in roles]  # (head, position) by question
    before = ask(model, sample)
    effects = []
    for target in targets:
        operations = _operations(target, centroids, clusters, seed)
        for name, operation in operations.items():
            after = ask(model, sample, layer=layer, heads=target.heads, operation=operation)
            effects.append(_effect(target, name, before, after))
    return Surgery(
        layer=layer,
        n=len(sample),
        n_clusters=centroids.shape[1],
        right=int(before.right.sum()),
        effects=tuple(effects),
    )


def _targets(
    n_heads: int,
    sample: Sample,
    heads: Sequence[int] | None,
    positions: Sequence[Sequence[int]] | None,
    n_controls: int,
    rng: np.random.Generator,
) -> list[Target]:
    where = None if positions is None else _checked_positions(sample, positions)

    def target(name: str, chosen: Sequence[int], is_control: bool = False) -> Target:
        return Target(name=name, heads=tuple(chosen), positions=where, is_control=is_control)

    if heads is None:
        targets = [target(f"head {head}", [head]) for head in range(n_heads)]
        if n_heads > 1:
            targets.append(target("all heads", range(n_heads)))
    else:
        chosen = sorted(set(heads))
        if not chosen or not 0 <= chosen[0] <= chosen[-1] < n_heads:
            raise SettingsError(f"the heads are 0 to {n_heads - 1}, not {list(heads)}")
        targets = [target(_named(chosen), chosen)]
        rest = [head for head in range(n_heads) if head not in chosen]
        sets: set[tuple[int, ...]] = set()
        while len(sets) < min(n_controls, math.comb(len(rest), len(chosen))):
            sets.add(tuple(sorted(rng.permutation(rest)[: len(chosen)].tolist())))
        targets += [target(f"random {_named(other)}", other, True) for other in sorted(sets)]
    if where is not None:
        targets += [
            Target(
                name=f"{one.name}, random positions",
                heads=one.heads,
                positions=_other_positions(sample, where, rng),
                is_control=True,
            )
            for one in targets
            if not one.is_control
        ]
    return targets


def _named(heads: Sequence[int]) -> str:
    return f"head{'s' if len(heads) > 1 else ''} {', '.join(map(str, heads))}"


def _checked_positions(
    sample: Sample, positions: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    if len(positions) != len(sample):
        raise SettingsError(f"{len(sample)} questions but positions of {len(positions)}")
    for question, own in zip(sample.questions, positions, strict=True):
        if any(not 0 <= position < len(symbols(question)) for position in own):
            raise SettingsError(
                f"{question!r} has the positions 0 to {len(symbols(question)) - 1}, not {list(own)}"
            )
    return tuple(tuple(sorted(set(own))) for own in positions)


def _other_positions(
    sample: Sample, positions: tuple[tuple[int, ...], ...], rng: np.random.Generator
) -> tuple[tuple[int, ...], ...]:
    """As many other positions of each question, or as many as there are."""
    drawn = []
    for question, own in zip(sample.questions, positions, strict=True):
        rest = np.setdiff1d(np.arange(len(symbols(question))), own)
        drawn.append(tuple(sorted(rng.permutation(rest)[: len(own)].tolist())))
    return tuple(drawn)


def _centroids(roles: Floats, n_clusters: int, seed: int) -> Floats:
    """The centroids of every head: (head, cluster, d_head), of as many clusters for each."""
    fewest = min(len(np.unique(own, axis=0)) for own in roles)
    return np.stack([cluster(own, min(n_clusters, fewest), seed).centroids for own in roles])


def _operations(
    target: Target, centroids: Floats, clusters: Sequence[Ids], seed: int
) -> Mapping[str, Operation]:
    """The operations on the heads of a target, each repeatable by the seed."""
    rng = np.random.default_rng(seed)
    heads = list(target.heads)
    own = [one[heads] for one in clusters]
    within, across = [], []
    for one in own:
        pairs = [exchanges(row, rng) for row in one]
        within.append(np.stack([order for order, _ in pairs]))
        across.append(np.stack([order for _, order in pairs]))
    centroid = moved_to(centroids[heads])
    found = {
        "zero": zeroed(),
        "random": randomised(seed),
        "centroid": centroid,
        "as far": as_far(seed, centroid),
        "within clusters": reordered(within),
        "across clusters": reordered(across),
    }
    if target.positions is None:
        return found
    return {name: at(target.positions, operation) for name, operation in found.items()}


def _effect(target: Target, operation: str, before: Asked, after: Asked) -> Effect:
    n = len(before.said)
    changed = sum(one != other for one, other in zip(before.said, after.said, strict=True))
    surprise = after.surprise - before.surprise
    return Effect(
        target=target,
        operation=operation,
        right=int(after.right.sum()),
        changed=changed,
        changed_interval=wilson(changed, n),
        surprise=float(surprise.mean()),
        surprise_interval=resample(n, lambda counts: counts @ surprise / n),
        moved=after.moved,
    )


def save(result: Surgery, context: Context, folder: str | Path) -> list[Path]:
    """Write the numbers and draw the share of changed answers, target by target."""
    path = outcome.write(folder, "surgery", result.to_values(), context)
    targets = list(dict.fromkeys(one.target.name for one in result.effects))
    controls = {one.target.name for one in result.effects if one.target.is_control}
    with figures.figure(7.0, 1.3 + 0.42 * len(targets)) as (drawn, axes):
        for number, operation in enumerate(OPERATIONS):
            own = [one for one in result.effects if one.operation == operation]
            shares = np.array([one.changed / result.n for one in own])
            limits = np.array([one.changed_interval for one in own]).T
            shift = (number - (len(OPERATIONS) - 1) / 2) * 0.13
            # Operations come in twos, of which the second is hollow.
            colour = figures.COLOURS[number // 2]
            axes.errorbar(
                100 * shares,
                np.arange(len(targets)) + shift,
                xerr=100 * np.abs(limits - shares),
                fmt="os^"[number // 2],
                color=colour,
                markerfacecolor="white" if number % 2 else colour,
                markersize=4,
                elinewidth=0.8,
                label=operation,
            )
        for place in range(1, len(targets)):
            axes.axhline(place - 0.5, color="#e0e0e0", linewidth=0.6)
        names = [f"{name} (control)" if name in controls else name for name in targets]
        axes.set_yticks(range(len(targets)), names)
        axes.set_ylim(len(targets) - 0.5, -0.5)
        most = max(100 * one.changed_interval[1] for one in result.effects)
        axes.set_xlim(-0.02 * most, 1.02 * most)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"changed answers of {result.n}, % (95% Wilson intervals)")
        drawn.suptitle(f"Surgery on the roles of encoder layer {result.layer}", fontsize=9)
        drawn.legend(loc="outside right upper", fontsize=7)
        figures.caption(drawn, context.caption)
        return [path, *figures.save(drawn, Path(folder), "surgery")]
