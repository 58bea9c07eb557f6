"""Role surgery: what becomes of the answers when role vectors are removed or replaced.

Of a TP-Transformer's encoder layer, the roles of some heads are operated on at all positions or at
chosen ones, and the answers are judged by one pass under teacher forcing, as everywhere. Operations
come in twos, the second being there to compare the first with:

- `zero`: nothing is bound; `random`: a random vector of the same length in the role's place;
- `swap`: the roles of a question exchanged in pairs at random; `as far as swap`: each role moved as
  far as that, but in a random direction;
- `centroid`: the centre of the role's cluster, so that only the cluster is left; `as far as
  centroid`: the role moved as far as its centroid is, but in a random direction;
- `same cluster`: another role of the same cluster; `other cluster`: a role of another cluster that
  is as far away. Where a role has no two such donors it is left alone by both. Swaps within and
  across clusters would not do: across they move roles twice as far as within, in any model.

If clusters are what roles are about (section 5.1), `centroid` changes fewer answers than `as far as
centroid`, and `same cluster` fewer than `other cluster`. Both comparisons are of the same
questions, by McNemar's exact test, and only what it finds clear is said.

An answer counts as changed if the likeliest symbol is another one at any of its positions, the
right symbols before it being given. Of an answer that was right, this is the verdict; but a model
that answers nothing can have its answers changed, too.

Heads are compared with each other, or chosen ones with as many others drawn at random; chosen
positions with as many others of the same question. That heads differ is no sign of training: those
of initial weights do, too.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tp_transformer.errors import SettingsError, UserError
from tp_transformer.interpret import outcome, surgery_figure
from tp_transformer.interpret.clusters import cluster
from tp_transformer.interpret.operations import (
    Asked,
    Floats,
    Operation,
    as_far,
    ask,
    at,
    donors,
    moved_to,
    nearest,
    randomised,
    replaced,
    role_of,
    swapped,
    zeroed,
)
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.record import (
    Sample,
    chosen_layer,
    record,
    symbols,
    transformer_of,
)
from tp_transformer.interpret.surgery_result import (
    PAIRS,
    Comparison,
    Effect,
    Surgery,
    Target,
)
from tp_transformer.model.family import AnyModel
from tp_transformer.scoring.statistics import Agreement, holm, mcnemar_exact, resample


def analyse(
    model: AnyModel,
    sample: Sample,
    *,
    layer: int = -1,
    heads: Sequence[int] | None = None,
    positions: Sequence[Sequence[int]] | None = None,
    place: str | None = None,
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
            others; all if None
        place: what these positions are, in words
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
    within, across = donors(roles, clusters, rng)
    before = ask(model, sample)
    effects = []
    for target in targets:
        operations = _operations(target, centroids, within, across, seed)
        for name, operation in operations.items():
            after = ask(model, sample, layers=[layer], heads=target.heads, operation=operation)
            effects.append(_effect(target, name, before, after))
    return Surgery(
        seed=seed,
        layer=layer,
        n=len(sample),
        n_clusters=centroids.shape[1],
        place=place or ("all positions" if positions is None else "chosen positions"),
        right=int(before.right.sum()),
        effects=tuple(effects),
        comparisons=_comparisons(effects),
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
    target: Target,
    centroids: Floats,
    within: Sequence[Floats],
    across: Sequence[Floats],
    seed: int,
) -> Mapping[str, Operation]:
    """The operations on the heads of a target, each repeatable by the seed."""
    heads = list(target.heads)
    centroid = moved_to(centroids[heads])
    swap = swapped(seed, target.positions)
    found = {
        "zero": zeroed(),
        "random": randomised(seed),
        "swap": swap,
        "as far as swap": as_far(seed, swap),
        "centroid": centroid,
        "as far as centroid": as_far(seed, centroid),
        "same cluster": replaced([own[heads] for own in within]),
        "other cluster": replaced([own[heads] for own in across]),
    }
    if target.positions is None:
        return found
    return {name: at(target.positions, operation) for name, operation in found.items()}


def _effect(target: Target, operation: str, before: Asked, after: Asked) -> Effect:
    n = len(before.said)
    surprise = after.surprise - before.surprise
    return Effect(
        target=target,
        operation=operation,
        right=int(after.right.sum()),
        is_changed=tuple(a != b for a, b in zip(before.said, after.said, strict=True)),
        surprise=float(surprise.mean()),
        surprise_interval=resample(n, lambda counts: counts @ surprise / n),
        touched=after.touched,
        moved=after.moved,
    )


def _comparisons(effects: Sequence[Effect]) -> tuple[Comparison, ...]:
    """Of operations with their controls, and of chosen targets with random ones."""
    found = {(one.target.name, one.operation): one for one in effects}
    own = [one for one in effects if not one.target.is_control]
    control_of = dict(PAIRS)
    pairs = [
        (one, found[one.target.name, control_of[one.operation]])
        for one in own
        if one.operation in control_of and one.touched
    ]
    zeros = [one for one in effects if one.operation == "zero"]
    pairs += [
        (one, other) for one in zeros for other in zeros if _is_control_of(other.target, one.target)
    ]
    agreements = [
        Agreement.of(np.array(one.is_changed), np.array(other.is_changed)) for one, other in pairs
    ]
    p_values = holm([mcnemar_exact(one.only_first, one.only_second) for one in agreements])
    return tuple(
        Comparison(
            first=first,
            second=second,
            only_first=agreement.only_first,
            only_second=agreement.only_second,
            p_value=p_value,
        )
        for (first, second), agreement, p_value in zip(pairs, agreements, p_values, strict=True)
    )


def _is_control_of(control: Target, target: Target) -> bool:
    """Whether it has other heads at the same positions, or other positions in the same heads."""
    alike = control.heads == target.heads or control.positions == target.positions
    return control.is_control and not target.is_control and alike


def save(result: Surgery, context: Context, folder: str | Path) -> list[Path]:
    """Write the numbers and draw the share of changed answers, target by target."""
    path = outcome.write(folder, "surgery", result.to_values(), context)
    return [path, *surgery_figure.draw(result, context, Path(folder))]
