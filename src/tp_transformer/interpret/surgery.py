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

An answer counts as changed if another token is the likeliest at any of its positions, given the
right tokens before it: the answers of a model that answers nothing correctly can change as well.
docs/interpretation.md has the tests and the controls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tp_transformer import figures
from tp_transformer.interpret.analyses import SurgeryOptions, head_indices, layer_index
from tp_transformer.interpret.core import operations
from tp_transformer.interpret.core.chart import ChartPanel, Marks, chart, look
from tp_transformer.interpret.core.operations import Predictions, RoleOperation, role_of
from tp_transformer.interpret.core.record import Floats, cluster, nearest, record
from tp_transformer.interpret.core.result import (
    Context,
    Result,
    ResultTable,
    Values,
    ratio_interval,
)
from tp_transformer.interpret.core.sample import Sample, token_characters
from tp_transformer.interpret.core.structure import PLACES
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.progress import track
from tp_transformer.scoring.statistics import (
    FEWEST,
    Agreement,
    Interval,
    holm,
    mcnemar_exact,
    wilson,
)

OPERATIONS = (
    "zero",
    "random",
    "swap",
    "as far as swap",
    "centroid",
    "as far as centroid",
    "same cluster",
    "other cluster",
)
# An operation that keeps the cluster, and one that moves roles as far without keeping it.
ABOUT_CLUSTERS = (("centroid", "as far as centroid"), ("same cluster", "other cluster"))
PAIRS = (("swap", "as far as swap"), *ABOUT_CLUSTERS)  # operations with their controls
LARGEST_P = 0.05  # largest p-value of a clear difference
HEAD_CONTROLS = 3  # random other heads


@dataclass(frozen=True, kw_only=True)
class Target:
    """The heads and positions of an operation."""

    name: str
    heads: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...] | None  # for each question; None for all positions
    is_control: bool


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of an operation on the answers.

    The surprise is the mean increase of the negative log-likelihood of the right answers, in nats.
    """

    target: Target
    operation: str  # one of OPERATIONS
    right: int  # number of answers that are right after it
    is_changed: tuple[bool, ...]  # for each question, whether the predicted answer changed
    surprise: float
    surprise_interval: Interval | None  # 95%, over questions; None for too few questions
    touched: float  # share of the roles that were moved
    moved: float  # mean distance of these, relative to their mean length

    @property
    def changed(self) -> int:
        """The number of changed answers."""
        return sum(self.is_changed)

    @property
    def share(self) -> float:
        """The share of changed answers."""
        return self.changed / len(self.is_changed)

    @property
    def interval(self) -> Interval:
        """The 95% interval of that share (Wilson)."""
        return wilson(self.changed, len(self.is_changed))

    @property
    def cell(self) -> str:
        """The share of changed answers and, below it, its interval, in percent."""
        if not self.touched:
            return "-"
        low, high = self.interval
        return f"{100 * self.share:.0f}\n{100 * low:.0f}-{100 * high:.0f}"

    def values(self) -> Values:
        return {
            "target": self.target.name,
            "heads": self.target.heads,
            "positions": self.target.positions,
            "is_control": self.target.is_control,
            "operation": self.operation,
            "right": self.right,
            "changed": self.changed,
            "changed_share": self.share,
            "changed_interval": self.interval,
            "surprise": self.surprise,
            "surprise_interval": self.surprise_interval,
            "touched": self.touched,
            "moved": self.moved,
        }


@dataclass(frozen=True, kw_only=True)
class EffectComparison:
    """A comparison of an effect with its control on the same questions."""

    first: Effect  # the effect
    second: Effect  # its control
    only_first: int  # number of answers that only the first changes
    only_second: int  # number of answers that only the second changes
    p_value: float  # McNemar's exact test, Holm-adjusted

    @property
    def is_clear(self) -> bool:
        """Whether the difference is significant."""
        return self.p_value <= LARGEST_P

    @property
    def says(self) -> str:
        """The difference in a word, if it is clear."""
        if not self.is_clear:
            return "no clear difference"
        return "fewer" if self.only_first < self.only_second else "more"

    def values(self) -> Values:
        return {
            "target": self.first.target.name,
            "operation": self.first.operation,
            "control_target": self.second.target.name,
            "control_operation": self.second.operation,
            "only_operation": self.only_first,
            "only_control": self.only_second,
            "p_value": self.p_value,
            "says": self.says,
        }


@dataclass(frozen=True, kw_only=True)
class SurgeryResult(Result):
    """The effects of operations on the roles of an encoder layer."""

    layer: int
    n_clusters: int
    place: str  # the positions, in words
    right: int  # answers that are right without any operation
    effects: tuple[Effect, ...]
    comparisons: tuple[EffectComparison, ...]

    name = "surgery"

    @property
    def n(self) -> int:
        """The number of questions."""
        return len(self.context.sample)

    @property
    def targets(self) -> list[Target]:
        """The targets, controls included."""
        return list(dict.fromkeys(effect.target for effect in self.effects))

    def values(self) -> Values:
        return {**super().values(), "n": self.n}

    def summary(self) -> list[str]:
        questions = "1 question" if self.n == 1 else f"{self.n} questions"
        lines = [
            f"Encoder layer {self.layer}, {self.place}, {questions}, answered correctly without "
            f"surgery: {self.right}; {self.n_clusters} clusters for each head. An answer counts as "
            "changed if another token is the likeliest at some position, given the right tokens "
            "before it."
        ]
        if self.n < FEWEST:
            lines.append(f"Fewer than {FEWEST} questions: there is no interval of the surprise.")
        targets = [target for target in self.targets if not target.is_control]
        return [*lines, *self._against_controls(targets), *self._about_clusters(targets)]

    def _against_controls(self, targets: Sequence[Target]) -> list[str]:
        """Compare chosen heads and positions with random ones."""
        lines = []
        if len({target.heads for target in targets}) > 1:
            lines.append("The heads serve as controls for each other.")
        for target in targets:
            compared = [
                f"compared with {control.second.target.name}: {control.says} "
                f"(p = {control.p_value:.2g})"
                for control in self.comparisons
                if control.first.operation == "zero" and control.first.target == target
            ]
            if compared:
                lines.append(
                    f"Changed answers without the roles of {target.name}, {'; '.join(compared)}. "
                    "(Heads of untrained models differ as well.)"
                )
        return lines

    def _about_clusters(self, targets: Sequence[Target]) -> list[str]:
        """Return the paired tests, and a verdict if both about clusters are clear."""
        differences = {pair: self._differences(pair[0], targets) for pair in PAIRS}
        lines = [
            f"Changed answers after {first!r} compared with {second!r}: "
            + "; ".join(f"{word} ({', '.join(names)})" for word, names in words.items())
            + "."
            for (first, second), words in differences.items()
        ]
        fewer = [differences[pair].get("fewer", []) for pair in ABOUT_CLUSTERS]
        both = [name for name in fewer[0] if name in fewer[1]]
        verdict = (
            f"The last two are both fewer in {', '.join(both)}, which suggests that the cluster of "
            "a role is what matters there."
            if both
            else "The last two are nowhere both clearly fewer, so nothing is said about clusters."
        )
        return [
            *lines,
            f"Clear means p <= {LARGEST_P} by McNemar's exact test on the same questions, adjusted "
            f"for {len(self.comparisons)} comparisons. {verdict}",
        ]

    def _differences(self, operation: str, targets: Sequence[Target]) -> dict[str, list[str]]:
        words = {
            comparison.first.target: comparison.says
            for comparison in self.comparisons
            if comparison.first.operation == operation
        }
        names_of: dict[str, list[str]] = {}
        for target in targets:
            word = words.get(target, "nothing to compare, because no role was moved")
            names_of.setdefault(word, []).append(target.name)
        return names_of

    def tables(self) -> list[ResultTable]:
        cells = {(effect.target, effect.operation): effect.cell for effect in self.effects}
        table = ResultTable(
            title="Changed answers in %, with 95% intervals",
            columns=("roles of", *OPERATIONS),
            rows=tuple(
                (target.name, *(cells[target, operation] for operation in OPERATIONS))
                for target in self.targets
            ),
            note="-: no roles moved. surgery.json has how many roles were moved and how far.",
        )
        return [table]

    def plot(self) -> "dict[str, figures.Figure]":
        marks = []
        for number, operation in enumerate(OPERATIONS):
            effects = [effect for effect in self.effects if effect.operation == operation]
            # Operations come in pairs; the mark of the second is hollow.
            pair, is_control = divmod(number, 2)
            looks = look("osD^"[pair], figures.COLOURS[pair], is_hollow=bool(is_control))
            shares, intervals = zip(*((x.share, x.interval) for x in effects), strict=True)
            marks.append(Marks(operation, looks, shares, intervals))
        rows = [
            f"{target.name} (control)" if target.is_control else target.name
            for target in self.targets
        ]
        drawn = chart(
            [ChartPanel(rows=rows, marks=marks)],
            row=0.5,
            axis=f"share of changed answers of {self.n} (95% Wilson intervals)",
            title=f"Surgery on the roles of encoder layer {self.layer}, {self.place}",
            caption="Changed: another token is the likeliest at some position of the answer, given "
            f"the right tokens before it; {self.right} of {self.n} were right before. "
            f"{self.context.caption}",
        )
        return {"surgery": drawn}


def analyse(
    model: Transformer, sample: Sample, options: SurgeryOptions, seed: int
) -> SurgeryResult:
    """Operate on the roles of an encoder layer, and compare the answers before and after."""
    layer = layer_index(options.layer, model.config.n_layers)
    rng = np.random.default_rng(seed)
    targets = _targets(model.config.n_heads, sample, options, rng)
    recording = record(model, sample, [role_of(layer)])
    roles = [piece.astype(np.float64) for piece in recording[role_of(layer)]]  # by question
    centroids = _centroids(np.concatenate(roles, axis=1), options.clusters, seed)
    clusters = [nearest(piece, centroids) for piece in roles]  # (head, position) by question
    within, across = operations.donors(roles, clusters, rng)
    before = operations.predict(model, sample)
    effects = []
    planned = (
        (target, name, operation)
        for target in targets
        for name, operation in _operations(target, centroids, within, across, seed).items()
    )
    n_operations = len(targets) * len(OPERATIONS)
    for target, name, operation in track("operating on roles", planned, n_operations):
        after = operations.predict(
            model, sample, layers=[layer], heads=target.heads, operation=operation
        )
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
    for question, taken in zip(sample.questions, positions, strict=True):
        rest = np.setdiff1d(np.arange(len(token_characters(question))), taken)
        drawn.append(tuple(sorted(rng.permutation(rest)[: len(taken)].tolist())))
    return tuple(drawn)


def _centroids(roles: Floats, n_clusters: int, seed: int) -> Floats:
    """Return the centroids of every head, the same number for each: (head, cluster, d_head)."""
    fewest = min(len(np.unique(vectors, axis=0)) for vectors in roles)
    n_clusters = min(n_clusters, fewest)
    return np.stack([cluster(vectors, n_clusters, seed).centroids for vectors in roles])


def _operations(
    target: Target, centroids: Floats, within: Sequence[Floats], across: Sequence[Floats], seed: int
) -> Mapping[str, RoleOperation]:
    heads = list(target.heads)
    centroid = operations.moved_to(centroids[heads])
    swap = operations.swapped(seed, target.positions)
    in_order = (
        operations.zeroed(),
        operations.randomised(seed),
        swap,
        operations.as_far(seed, swap),
        centroid,
        operations.as_far(seed, centroid),
        operations.replaced([roles[heads] for roles in within]),
        operations.replaced([roles[heads] for roles in across]),
    )
    by_name = dict(zip(OPERATIONS, in_order, strict=True))
    if target.positions is None:
        return by_name
    return {name: operations.at(target.positions, operation) for name, operation in by_name.items()}


def _effect(target: Target, operation: str, before: Predictions, after: Predictions) -> Effect:
    surprise = after.surprise - before.surprise
    return Effect(
        target=target,
        operation=operation,
        right=int(after.right.sum()),
        is_changed=tuple(a != b for a, b in zip(before.tokens, after.tokens, strict=True)),
        surprise=float(surprise.mean()),
        surprise_interval=ratio_interval(surprise),
        touched=after.touched,
        moved=after.moved,
    )


def _comparisons(effects: Sequence[Effect]) -> tuple[EffectComparison, ...]:
    """Compare operations with their controls, and chosen targets with random ones."""
    effect_of = {(effect.target.name, effect.operation): effect for effect in effects}
    control_of = dict(PAIRS)
    pairs = [
        (effect, effect_of[effect.target.name, control_of[effect.operation]])
        for effect in effects
        if not effect.target.is_control and effect.operation in control_of and effect.touched
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
