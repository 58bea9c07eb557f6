"""Role vectors removed or replaced, and the effect on the answers.

In an encoder layer of a TP-Transformer, the roles of some heads are changed at all positions or at
chosen ones, and the answers are judged under teacher forcing. Operations come in pairs, the second
being the control of the first:

- `zero`: roles are replaced by zeros; `random`: by random vectors of the same length;
- `swap`: random pairs of roles within a question are exchanged; `as far as swap`: each role is
  moved as far in a random direction;
- `centroid`: each role is replaced by the centroid of its cluster; `as far as centroid`: each role
  is moved as far in a random direction;
- `same cluster`: each role is replaced by another role of its cluster; `other cluster`: by a role
  of another cluster at the same distance. Both leave a role unchanged if it has no two such donors.
  Swaps within and across clusters would not do: swaps across move roles twice as far, in any model.

If the clusters of roles are what matters (section 5.1), `centroid` changes fewer answers than `as
far as centroid`, and `same cluster` fewer than `other cluster`. Both are tested on the same
questions by McNemar's exact test, and only clear differences are stated.

An answer counts as changed if another token is the likeliest at any of its positions, given the
right tokens before it. For an answer that was right, this is the verdict; but the answers of a
model that answers nothing correctly can change as well.

Heads are compared with each other, or a chosen head with random others; chosen positions with as
many others of the same question. A difference between heads is no sign of training: heads
of untrained models differ as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tp_transformer.foundation.progress import track
from tp_transformer.foundation.statistics import Agreement, holm, mcnemar_exact, resample
from tp_transformer.interpret.core.arrays import Floats
from tp_transformer.interpret.core.clusters import cluster
from tp_transformer.interpret.core.operations import (
    Predictions,
    RoleOperation,
    as_far,
    at,
    donors,
    moved_to,
    nearest,
    predict,
    randomised,
    replaced,
    role_of,
    swapped,
    zeroed,
)
from tp_transformer.interpret.core.options import head_indices, layer_index
from tp_transformer.interpret.core.record import checked_model, record
from tp_transformer.interpret.core.relations import PLACES
from tp_transformer.interpret.core.result import Context
from tp_transformer.interpret.core.sample import Sample, token_characters
from tp_transformer.interpret.surgery.options import SurgeryOptions
from tp_transformer.interpret.surgery.result import (
    OPERATIONS,
    PAIRS,
    Effect,
    EffectComparison,
    SurgeryResult,
    Target,
)
from tp_transformer.model.family import AnyModel

HEAD_CONTROLS = 3  # random other heads


def analyse(model: AnyModel, sample: Sample, options: SurgeryOptions, seed: int) -> SurgeryResult:
    """Operate on the roles of an encoder layer, and compare the answers before and after."""
    model = checked_model(model, options)
    layer = layer_index(options.layer, model.config.n_layers)
    rng = np.random.default_rng(seed)
    targets = _targets(model.config.n_heads, sample, options, rng)
    found = record(model, sample, [role_of(layer)])
    roles = [piece.astype(np.float64) for piece in found[role_of(layer)]]  # by question
    centroids = _centroids(np.concatenate(roles, axis=1), options.clusters, seed)
    clusters = [nearest(own, centroids) for own in roles]  # (head, position) by question
    within, across = donors(roles, clusters, rng)
    before = predict(model, sample)
    effects = []
    operations = (
        (target, name, operation)
        for target in targets
        for name, operation in _operations(target, centroids, within, across, seed).items()
    )
    n_operations = len(targets) * len(OPERATIONS)
    for target, name, operation in track("operating on roles", operations, n_operations):
        after = predict(model, sample, layers=[layer], heads=target.heads, operation=operation)
        effects.append(_effect(target, name, before, after))
    return SurgeryResult(
        context=Context.of(model, sample, seed),
        layer=layer,
        n_clusters=centroids.shape[1],
        place=options.at or "all positions",
        right=int(before.right.sum()),
        effects=tuple(effects),
        comparisons=_comparisons(effects),
    )


def _targets(
    n_heads: int, sample: Sample, options: SurgeryOptions, rng: np.random.Generator
) -> list[Target]:
    """Return each head and all heads, or one head and random others; then random positions."""
    positions = None
    if options.at is not None:
        find = PLACES[options.at]
        positions = tuple(tuple(find(question)) for question in sample.parsed)
    named: dict[str, tuple[int, ...]] = {
        f"head {head}": (head,) for head in head_indices(options.head, n_heads)
    }
    if len(named) > 1:
        named["all heads"] = tuple(range(n_heads))
    targets = [
        Target(name=name, heads=heads, positions=positions, is_control=False)
        for name, heads in named.items()
    ]
    controls = []
    if options.head is not None:
        rest = [head for head in range(n_heads) if head != options.head]
        drawn: set[int] = set()
        while len(drawn) < min(HEAD_CONTROLS, len(rest)):
            drawn.add(int(rng.permutation(rest)[0]))
        controls = [
            Target(name=f"random head {head}", heads=(head,), positions=positions, is_control=True)
            for head in sorted(drawn)
        ]
    if positions is not None:
        controls += [
            replace(
                target,
                name=f"{target.name}, random positions",
                positions=_other_positions(sample, positions, rng),
                is_control=True,
            )
            for target in targets
        ]
    return [*targets, *controls]


def _other_positions(
    sample: Sample, positions: Sequence[Sequence[int]], rng: np.random.Generator
) -> tuple[tuple[int, ...], ...]:
    """Draw as many other positions of each question, or all if there are fewer."""
    drawn = []
    for question, own in zip(sample.questions, positions, strict=True):
        rest = np.setdiff1d(np.arange(len(token_characters(question))), own)
        drawn.append(tuple(sorted(rng.permutation(rest)[: len(own)].tolist())))
    return tuple(drawn)


def _centroids(roles: Floats, n_clusters: int, seed: int) -> Floats:
    """Return the centroids of every head, the same number for each: (head, cluster, d_head)."""
    fewest = min(len(np.unique(own, axis=0)) for own in roles)
    return np.stack([cluster(own, min(n_clusters, fewest), seed).centroids for own in roles])


def _operations(
    target: Target,
    centroids: Floats,
    within: Sequence[Floats],
    across: Sequence[Floats],
    seed: int,
) -> Mapping[str, RoleOperation]:
    """Return the operations on the heads of a target by name."""
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


def _effect(target: Target, operation: str, before: Predictions, after: Predictions) -> Effect:
    n = len(before.tokens)
    surprise = after.surprise - before.surprise
    return Effect(
        target=target,
        operation=operation,
        right=int(after.right.sum()),
        is_changed=tuple(a != b for a, b in zip(before.tokens, after.tokens, strict=True)),
        surprise=float(surprise.mean()),
        surprise_interval=resample(n, lambda counts: counts @ surprise / n),
        touched=after.touched,
        moved=after.moved,
    )


def _comparisons(effects: Sequence[Effect]) -> tuple[EffectComparison, ...]:
    """Compare operations with their controls, and chosen targets with random ones."""
    found = {(effect.target.name, effect.operation): effect for effect in effects}
    own = [effect for effect in effects if not effect.target.is_control]
    control_of = dict(PAIRS)
    pairs = [
        (effect, found[effect.target.name, control_of[effect.operation]])
        for effect in own
        if effect.operation in control_of and effect.touched
    ]
    zeros = [effect for effect in effects if effect.operation == "zero"]
    pairs += [
        (effect, control)
        for effect in zeros
        for control in zeros
        if _is_control_of(control.target, effect.target)
    ]
    agreements = [
        Agreement.of(np.array(first.is_changed), np.array(second.is_changed))
        for first, second in pairs
    ]
    p_values = holm([mcnemar_exact(pair.only_first, pair.only_second) for pair in agreements])
    return tuple(
        EffectComparison(
            first=first,
            second=second,
            only_first=agreement.only_first,
            only_second=agreement.only_second,
            p_value=p_value,
        )
        for (first, second), agreement, p_value in zip(pairs, agreements, p_values, strict=True)
    )


def _is_control_of(control: Target, target: Target) -> bool:
    """Whether a control has other heads at the same positions, or other positions."""
    alike = control.heads == target.heads or control.positions == target.positions
    return control.is_control and not target.is_control and alike
