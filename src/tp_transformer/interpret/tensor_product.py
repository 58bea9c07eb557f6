"""What the Hadamard product keeps of the tensor product of fillers and roles (section 7).

A head binds its filler v to its role r by v * r, the diagonal of the tensor product v (x) r: it
keeps d_head of d_head^2 numbers. This analysis measures the share of the variance of the tensor
product that d_head numbers keep:

- `hadamard`: the diagonal, which the model keeps;
- `aligned`: the diagonal after the best rotations of v and of r that were found: the directions
  m_c (x) n_c with orthonormal M and N of section 7. A local optimum, so a lower bound;
- `optimum`: the d_head principal directions, whether or not they are products;
- `ceiling`: the same, fitted on the scored positions themselves; nothing keeps more of them;
- `random`: the diagonal after random rotations. On average these keep 1 / d_head, and so does a
  random subspace of d_head dimensions.

Directions are fitted on some questions and scored on others. Variance is about the mean, because
the bias of the output map can supply a mean; second moments about zero (`raw`) are also reported.

The model has learned v and r together with the diagonal, so they already are M^T v and N^T r of the
paper if training found these rotations: `hadamard` is the only share that changes if v and r are
rotated. The difference between `aligned` and `optimum` is the cost of the assumption that principal
directions are products with orthonormal factors. It fails if most variance is that of v times a
mean role, or of r times a mean filler, because such directions share a factor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tp_transformer import figures
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import UserError
from tp_transformer.interpret.analyses import TensorProductOptions, layer_indices
from tp_transformer.interpret.core.chart import BAND, ChartPanel, Marks, chart, look
from tp_transformer.interpret.core.record import (
    ENCODER,
    TITLES,
    Floats,
    Integers,
    point,
    record,
    untrained_models,
)
from tp_transformer.interpret.core.result import (
    Context,
    Result,
    ResultTable,
    Values,
    in_words,
    ratio_interval,
)
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.progress import track
from tp_transformer.scoring.statistics import FEWEST, Interval

MOST_POSITIONS = 1_024  # for the fit, and for scoring: the Gram matrix is quadratic in them
RANDOM_DRAWS = 50
INITIAL_DRAWS = 3  # untrained models; each takes as long as the model itself
MOST_ROUNDS = 200
SMALLEST_GAIN = 1e-5  # of the share, at which the ascent stops
ROW = 0.12  # inches of the figure for a head


@dataclass(frozen=True, kw_only=True)
class Products:
    """The tensor products of the fillers and roles of one head."""

    filler: Floats  # (position, d_head)
    role: Floats  # (position, d_head)
    centred: bool

    @property
    def mean(self) -> Floats:
        """The mean about which variance is measured: (d_head, d_head)."""
        n, d_head = self.filler.shape
        return self.filler.T @ self.role / n if self.centred else np.zeros((d_head, d_head))

    @property
    def totals(self) -> Floats:
        """The squared distance of each tensor product from the mean: (position,)."""
        mean = self.mean
        squares = np.square(self.filler).sum(axis=1) * np.square(self.role).sum(axis=1)
        crossed = ((self.filler @ mean) * self.role).sum(axis=1)
        return squares - 2 * crossed + np.square(mean).sum()

    def diagonals(self) -> Floats:
        """Return the part of each squared distance that the diagonal keeps: (position,)."""
        kept: Floats = np.square(self.filler * self.role - np.diag(self.mean)).sum(axis=1)
        return kept

    def rotated(self, filler: Floats, role: Floats) -> "Products":
        """Return the products in the coordinates of two orthogonal matrices."""
        return Products(filler=self.filler @ filler, role=self.role @ role, centred=self.centred)

    def share(self) -> float:
        """Return the share of the variance that the diagonal keeps."""
        kept = float(self.diagonals().sum() / self.totals.sum())
        return min(1.0, kept)  # rounding may leave it slightly above

    def along(self, directions: Floats) -> Floats:
        """Return what orthonormal directions (direction, d_head, d_head) keep: (position,)."""
        products = ((self.filler @ directions) * self.role).sum(axis=2)  # (direction, position)
        products -= (self.mean * directions).sum(axis=(1, 2))[:, None]
        kept: Floats = np.square(products).sum(axis=0)
        return kept

    @cached_property
    def principal(self) -> tuple[Floats, Floats]:
        """The d_head largest variances and their directions, (direction, d_head, d_head)."""
        n, d_head = self.filler.shape
        if d_head * d_head <= n:
            tensors = self.filler[:, :, None] * self.role[:, None, :] - self.mean
            tensors = tensors.reshape(n, -1)
            values, vectors = np.linalg.eigh(tensors.T @ tensors)
            directions = vectors.T.reshape(-1, d_head, d_head)
            return values[::-1][:d_head], directions[::-1][:d_head]
        values, vectors = np.linalg.eigh(self._gram())
        values, vectors = values[::-1][:d_head], vectors.T[::-1][:d_head]
        is_there = values > 1e-12 * values[0]
        weights = vectors[is_there] / np.sqrt(values[is_there, None])
        return values[is_there], (self.filler.T * weights[:, None, :]) @ self.role

    def _gram(self) -> Floats:
        """Return the inner products of all pairs, without computing the tensor products.

        (v_i (x) r_i) . (v_j (x) r_j) = (v_i . v_j) (r_i . r_j)
        """
        gram = (self.filler @ self.filler.T) * (self.role @ self.role.T)
        if self.centred:
            gram -= gram.mean(axis=0)
            gram -= gram.mean(axis=1, keepdims=True)
        return gram


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of the variance of the tensor products of one head; see the analysis module."""

    hadamard: float
    hadamard_interval: Interval | None  # 95%, over resampled questions; None for too few
    aligned: float
    optimum: float
    ceiling: float
    random: float  # mean over random rotations
    random_range: Interval  # of 95% of random rotations

    @property
    def is_beyond_random(self) -> bool:
        """Whether the learned coordinates keep more than 97.5% of random coordinates do.

        Of 96 untrained heads 6 did, more than the expected 2 or 3: Xavier-uniform weights are not
        quite isotropic. This is why untrained models are reported as well.
        """
        return self.hadamard > self.random_range[1]


@dataclass(frozen=True, kw_only=True)
class HeadShares:
    """Shares of the variance and of the second moments about zero of one head."""

    layer: int
    head: int
    variance: Shares
    second_moment: Shares


@dataclass(frozen=True, kw_only=True)
class TensorProductResult(Result):
    """The shares of every head, in the model and in untrained models."""

    where: str  # encoder, decoder or cross
    binding: str
    d_head: int
    is_held_out: bool  # whether directions were fitted on other questions
    n_fitted: int
    n_scored: int
    heads: tuple[HeadShares, ...]
    initial: tuple[tuple[HeadShares, ...], ...]  # of each untrained model

    @property
    def name(self) -> str:
        """The name of the JSON file."""
        return "tensor-product" if self.where == ENCODER else f"tensor-product-{self.where}"

    def summary(self) -> list[str]:
        n_beyond, *initial = (
            sum(head.variance.is_beyond_random for head in heads)
            for heads in (self.heads, *self.initial)
        )
        lines = [
            f"{TITLES[self.where]}: in {n_beyond} of {len(self.heads)} heads the "
            "Hadamard product keeps more of the variance of filler (x) role than 97.5% of random "
            f"rotations do; in {len(self.initial)} untrained models, in {min(initial)} to "
            f"{max(initial)}."
        ]
        if self.heads[0].variance.hadamard_interval is None:
            lines.append(f"Fewer than {FEWEST} questions are scored: a share has no interval.")
        lines.append(
            "The model learned these vectors together with the Hadamard product: they already are "
            "M^T v and N^T r of section 7 if training found these rotations. The share measures "
            "how well the learned coordinates follow the principal product directions, not how "
            "well the model works: nothing in the loss rewards variance."
        )
        if self.binding != "hadamard":
            lines.append(
                f"This model binds by {self.binding}: the share is what the Hadamard product would "
                "keep of these fillers and roles, not what the model keeps."
            )
        if not self.is_held_out:
            lines.append(
                "With a single question, directions are fitted and scored on the same positions."
            )
        return lines

    def tables(self) -> list[ResultTable]:
        ours, *initial = (
            [
                float(np.mean([getattr(head.variance, name) for head in heads]))
                for name in ("hadamard", "aligned", "optimum", "random")
            ]
            for heads in (self.heads, *self.initial)
        )
        ranges = [in_words((min(means), max(means)), ".1%") for means in zip(*initial, strict=True)]
        table = ResultTable(
            title="Share of the variance of filler (x) role, averaged over heads",
            columns=("", "Hadamard", "best rotations", "best directions", "random rotations"),
            rows=(
                ("this model", *(f"{mean:.1%}" for mean in ours)),
                (f"{len(self.initial)} untrained models", *ranges),
            ),
            note=f"best rotations: the best that were found. best directions: {self.d_head}. "
            f"1 / d_head is {1 / self.d_head:.1%}.",
        )
        return [table]

    def values(self) -> Values:
        return {**super().values(), "expected_random": 1 / self.d_head}

    def plot(self) -> "dict[str, figures.Figure]":
        drawn = chart(
            [self._panel(layer) for layer in sorted({head.layer for head in self.heads})],
            row=ROW,
            is_log=True,
            axis="share of the variance of filler ⊗ role",
            caption=f"{TITLES[self.where]}. Hadamard: what the diagonal keeps, with 95% intervals "
            f"over questions; hollow, mean of {len(self.initial)} untrained models. Grey: 95% of "
            "random rotations. Ceiling: the best directions of the scored positions themselves. "
            f"{self.context.caption}",
        )
        return {self.name: drawn}

    def _panel(self, layer: int) -> ChartPanel:
        """Return the shares of the heads of a layer."""
        indices = [i for i, head in enumerate(self.heads) if head.layer == layer]
        shares = [self.heads[i].variance for i in indices]
        untrained = [
            float(np.mean([heads[i].variance.hadamard for heads in self.initial])) for i in indices
        ]
        intervals = [share.hadamard_interval for share in shares]
        marks = [
            Marks("random rotations", BAND, [], [share.random_range for share in shares]),
            Marks("Hadamard", look("o", "blue", size=2), [x.hadamard for x in shares], intervals),
            Marks("Hadamard, untrained", look("o", "blue", is_hollow=True, size=2), untrained),
            Marks("best rotations found", look("^", "orange", size=2), [x.aligned for x in shares]),
            Marks("best directions", look("s", "green", size=2), [x.optimum for x in shares]),
            Marks("ceiling", look("|", "#000000", size=4), [x.ceiling for x in shares]),
        ]
        rows = [f"head {self.heads[i].head}" for i in indices]
        return ChartPanel(rows=rows, marks=marks, title=f"layer {layer}")


def analyse(
    model: Transformer, sample: Sample, options: TensorProductOptions, seed: int
) -> TensorProductResult:
    """Measure every head of one layer or of all layers, in the model and in untrained models.

    In the decoder, positions are those of the right answer, which is given.
    """
    where, layers = options.where, layer_indices(options.layer, model.config.n_layers)
    names = {layer: [point(where, layer, name) for name in ("filler", "role")] for layer in layers}
    fitted, scored, questions = _split(sample, model.vocabulary, where, seed)
    controls = untrained_models(model, seed, INITIAL_DRAWS, "measuring untrained models")
    heads, *initial = (
        _of_model(each, sample, names, fitted, scored, questions, seed)
        for each in (model, *controls)
    )
    return TensorProductResult(
        context=Context.of(model, sample, seed),
        where=where,
        binding=model.config.binding,
        d_head=model.config.d_model // model.config.n_heads,
        is_held_out=len(sample) > 1,
        n_fitted=len(fitted),
        n_scored=len(scored),
        heads=heads,
        initial=tuple(initial),
    )


def _split(
    sample: Sample, vocabulary: Vocabulary, where: str, seed: int
) -> tuple[Integers, Integers, Integers]:
    """Return the positions to fit on, those of other questions to score, and their questions."""
    rng = np.random.default_rng(seed)
    if where == ENCODER:
        lengths = vocabulary.encode(sample.questions).lengths
    else:
        lengths = vocabulary.encode(sample.answers).lengths - 1  # without the end token
    question = np.repeat(np.arange(len(sample)), lengths)
    is_fitted = rng.permutation(len(sample))[question] < len(sample) / 2
    fitted, scored = (
        np.sort(rng.permutation(np.flatnonzero(chosen))[:MOST_POSITIONS])
        for chosen in (is_fitted, ~is_fitted)
    )
    if len(sample) == 1:  # there is no other question
        scored = fitted
    return fitted, scored, question[scored]


def _of_model(
    model: Transformer,
    sample: Sample,
    names_of: Mapping[int, Sequence[str]],  # the points of fillers and roles of each layer
    fitted: Integers,
    scored: Integers,
    questions: Integers,
    seed: int,
) -> tuple[HeadShares, ...]:
    heads = []
    for layer, names in names_of.items():
        recording = record(model, sample, names)
        filler, role = (recording.flat(name).astype(np.float64) for name in names)
        for head in track(f"measuring the heads of layer {layer}", range(filler.shape[1])):
            variance, second_moment = (
                measure(
                    Products(filler=filler[fitted, head], role=role[fitted, head], centred=about),
                    Products(filler=filler[scored, head], role=role[scored, head], centred=about),
                    questions,
                    seed,
                )
                for about in (True, False)
            )
            heads.append(
                HeadShares(layer=layer, head=head, variance=variance, second_moment=second_moment)
            )
    return tuple(heads)


def measure(fitted: Products, scored: Products, questions: Integers, seed: int = 0) -> Shares:
    """Measure all shares of one head; `questions` has the question of each scored position."""
    total = float(scored.totals.sum())
    if not total > 0:
        raise UserError("the fillers and roles of a head are the same at all positions")
    rng = np.random.default_rng(seed)
    d_head = fitted.filler.shape[1]
    rotations = [(_orthogonal(d_head, rng), _orthogonal(d_head, rng)) for _ in range(RANDOM_DRAWS)]
    random = np.array([scored.rotated(*both).share() for both in rotations])
    low, high = np.quantile(random, [0.025, 0.975])
    return Shares(
        hadamard=scored.share(),
        hadamard_interval=ratio_interval(scored.diagonals(), scored.totals, group=questions),
        aligned=scored.rotated(*align(fitted, rng)).share(),
        optimum=float(scored.along(fitted.principal[1]).sum() / total),
        ceiling=float(scored.principal[0].sum() / total),
        random=float(random.mean()),
        random_range=(float(low), float(high)),
    )


def align(products: Products, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Find rotations of fillers and roles after which the diagonal keeps much (M and N).

    The best of three starts: the coordinates of the model, and two random ones. In trained and
    planted heads, the shares of all starts agreed within 0.003.
    """
    d_head = products.filler.shape[1]
    starts = [
        (np.eye(d_head), np.eye(d_head)),
        *((_orthogonal(d_head, rng), _orthogonal(d_head, rng)) for _ in range(2)),
    ]
    ends = [_ascend(products, *start) for start in starts]
    return max(ends, key=lambda end: products.rotated(*end).share())


def _ascend(products: Products, filler: Floats, role: Floats) -> tuple[Floats, Floats]:
    """Improve rotations until the gain is small.

    With N fixed, the kept variance is a convex function of M, the sum over c of m_c^T C_c m_c. It
    lies above its tangent, and the polar factor of the gradient maximises the tangent over all
    orthogonal matrices; so each step keeps at least as much as the one before. The same for N.
    """
    share = products.rotated(filler, role).share()
    for _ in range(MOST_ROUNDS):
        filler = _polar(_gradient(products, filler, role))
        swapped = Products(filler=products.role, role=products.filler, centred=products.centred)
        role = _polar(_gradient(swapped, role, filler))
        before, share = share, products.rotated(filler, role).share()
        if share - before < SMALLEST_GAIN:
            break
    return filler, role


def _gradient(products: Products, filler: Floats, role: Floats) -> Floats:
    """Return half the gradient of the kept variance by the rotation of the fillers."""
    turned = products.rotated(filler, role)
    kept = turned.filler * turned.role - np.diag(turned.mean)  # (position, d_head)
    # The kept numbers sum to zero about the mean, so the gradient of the mean vanishes.
    return products.filler.T @ (kept * turned.role)


def _polar(matrix: Floats) -> Floats:
    """Return the orthogonal matrix nearest to a matrix."""
    left, _, right = np.linalg.svd(matrix)
    return left @ right


def _orthogonal(size: int, rng: np.random.Generator) -> Floats:
    """Draw a rotation or reflection from the uniform distribution."""
    turned, scale = np.linalg.qr(rng.standard_normal((size, size)))
    return turned * np.sign(np.diag(scale))
