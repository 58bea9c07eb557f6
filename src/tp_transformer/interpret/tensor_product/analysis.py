"""What the Hadamard product keeps of the tensor product of fillers and roles (section 7).

A head binds its filler v to its role r by v * r, the diagonal of the tensor product v (x) r: it
keeps d_head of d_head^2 numbers. Section 7 argues that a model can learn coordinates in which these
are the best numbers to keep. This analysis measures, for the fillers and roles of a sample, the
share of the variance of the tensor product that d_head numbers keep:

- `hadamard`: the diagonal, which the model keeps;
- `aligned`: the diagonal after the best rotations of v and of r that were found: the directions
  m_c (x) n_c with orthonormal M and N of section 7. A local optimum, so a lower bound;
- `optimum`: the d_head principal directions, whether or not they are products;
- `ceiling`: the same, fitted on the scored positions themselves; nothing keeps more of them;
- `random`: the diagonal after random rotations. On average these keep 1 / d_head, and so does a
  random subspace of d_head dimensions.

Directions are fitted on some questions and scored on others. Variance is about the mean, because
the bias of the output map can supply a mean; second moments about zero (`raw`) are also reported.

Interpretation: the model has learned v and r together with the diagonal, so they already are M^T v
and N^T r of the paper if training found these rotations. `hadamard` measures whether it did; it is
the only share that changes if v and r are rotated. Section 7 assumes that the principal directions
are products with orthonormal factors; the difference between `aligned` and `optimum` is the cost of
that assumption. It fails if most variance is that of v times a mean role, or of r times a mean
filler, because such directions share a factor. Nothing in the loss rewards kept variance: a model
can work well with little of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.foundation.errors import UserError
from tp_transformer.foundation.progress import track
from tp_transformer.foundation.statistics import Interval, resample
from tp_transformer.interpret.core.arrays import Floats, Integers
from tp_transformer.interpret.core.options import layer_index
from tp_transformer.interpret.core.record import ENCODER, checked_model, point, record, untrained
from tp_transformer.interpret.core.result import Context
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.tensor_product.options import TensorProductOptions
from tp_transformer.interpret.tensor_product.result import HeadShares, Shares, TensorProductResult
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer

MOST_POSITIONS = 1_024  # for the fit, and for scoring: the Gram matrix is quadratic in them
RANDOM_DRAWS = 50
INITIAL_DRAWS = 3  # untrained models; each takes as long as the model itself
MOST_ROUNDS = 200
SMALLEST_GAIN = 1e-5  # of the share, at which the ascent stops


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
        found = ((self.filler @ directions) * self.role).sum(axis=2)  # (direction, position)
        found -= (self.mean * directions).sum(axis=(1, 2))[:, None]
        kept: Floats = np.square(found).sum(axis=0)
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
        there = values > 1e-12 * values[0]
        weights = vectors[there] / np.sqrt(values[there, None])
        return values[there], (self.filler.T * weights[:, None, :]) @ self.role

    def _gram(self) -> Floats:
        """Return the inner products of all pairs, without computing the tensor products.

        (v_i (x) r_i) . (v_j (x) r_j) = (v_i . v_j) (r_i . r_j)
        """
        found = (self.filler @ self.filler.T) * (self.role @ self.role.T)
        if self.centred:
            found -= found.mean(axis=0)
            found -= found.mean(axis=1, keepdims=True)
        return found


def analyse(
    model: AnyModel, sample: Sample, options: TensorProductOptions, seed: int
) -> TensorProductResult:
    """Measure every head of one layer or of all layers, in the model and in untrained models.

    In the decoder, positions are those of the right answer, which is given.
    """
    model = checked_model(model, options)
    where, n_layers = options.where, model.config.n_layers
    layers = range(n_layers) if options.layer is None else [layer_index(options.layer, n_layers)]
    names = {layer: [point(where, layer, name) for name in ("filler", "role")] for layer in layers}
    fitted, scored, questions = _parts(sample, model.vocabulary, where, seed)
    controls = (untrained(model, seed + draw) for draw in range(INITIAL_DRAWS))
    found = [
        _of_model(each, sample, names, fitted, scored, questions, seed)
        for each in (model, *controls)
    ]
    return TensorProductResult(
        context=Context.of(model, sample, seed),
        where=where,
        binding=model.config.binding,
        d_head=model.config.d_model // model.config.n_heads,
        is_held_out=len(sample) > 1,
        n_fitted=len(fitted),
        n_scored=len(scored),
        heads=found[0],
        initial=tuple(found[1:]),
    )


def _parts(
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
        found = record(model, sample, names)
        filler, role = (found.flat(name).astype(np.float64) for name in names)
        for head in track(f"measuring the heads of layer {layer}", range(filler.shape[1])):
            centred, raw = (
                measure(
                    Products(filler=filler[fitted, head], role=role[fitted, head], centred=about),
                    Products(filler=filler[scored, head], role=role[scored, head], centred=about),
                    questions,
                    seed,
                )
                for about in (True, False)
            )
            heads.append(HeadShares(layer=layer, head=head, centred=centred, raw=raw))
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
        hadamard_interval=_interval(scored, questions),
        aligned=scored.rotated(*align(fitted, rng)).share(),
        optimum=float(scored.along(fitted.principal[1]).sum() / total),
        ceiling=float(scored.principal[0].sum() / total),
        random=float(random.mean()),
        random_range=(float(low), float(high)),
    )


def _interval(scored: Products, questions: Integers) -> Interval | None:
    _, place = np.unique(questions, return_inverse=True)
    kept = np.bincount(place, scored.diagonals())
    total = np.bincount(place, scored.totals)
    return resample(len(kept), lambda counts: (counts @ kept) / (counts @ total))


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
