"""What the Hadamard product keeps of the tensor product of fillers and roles (section 7).

A head binds its filler v to its role r by v * r, the diagonal of the tensor product v (x) r: it
keeps d_head of d_head^2 numbers. Section 7 argues that a model can learn coordinates in which these
are the best ones. Here it is measured, from the fillers and roles of a sample, what share of the
tensor product's variance is kept by d_head numbers:

- `hadamard`: the diagonal, which the model keeps;
- `aligned`: the diagonal after the best rotations found of v and of r, the directions m_c (x) n_c
  with orthonormal M and N of section 7. A local optimum of several starts, so a lower bound;
- `optimum`: the d_head principal directions, products or not;
- `ceiling`: the same fitted on the very positions that are scored: nothing keeps more of them;
- `random`: the diagonal after random rotations. On average these keep 1 / d_head, and so does a
  random subspace of d_head dimensions.

Directions are fitted on some questions and scored on others. "Variance" is about the mean, as the
output map's bias can supply a mean; the second moments about zero (`raw`) are there too.

What it means: the model has learned v and r jointly with the diagonal, so they already are the
paper's M^T v and N^T r, if learning found them. `hadamard` asks whether it did: whether the learned
coordinates are those of the principal product directions. Rotating v and r changes it alone.
That the principal directions are products with orthonormal factors is section 7's assumption; what
it costs is the distance from `aligned` to `optimum`. It fails where variance is mostly that of v
times a mean role, or of r times a mean filler: these directions share a factor.
Nothing in the loss rewards the variance that is kept: a model can do well with little of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tp_transformer.errors import UserError
from tp_transformer.interpret import outcome, tensor_product_figure
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.record import (
    ENCODER,
    Sample,
    chosen_layer,
    fresh,
    point,
    record,
    transformer_of,
)
from tp_transformer.interpret.tensor_product_result import HeadShares, Shares, TensorProduct
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer
from tp_transformer.scoring.statistics import Interval, resample

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

MOST_POSITIONS = 1_024  # to fit, and again to score: the Gram matrix has their number squared
RANDOM_DRAWS = 50
INITIAL_DRAWS = 3  # of weights: as long again as the model itself takes, for each
MOST_ROUNDS = 200
SMALLEST_GAIN = 1e-5  # of the share, below which rotations are no longer improved


@dataclass(frozen=True, kw_only=True)
class Products:
    """Fillers and roles of one head, for the tensor products of their rows."""

    filler: Floats  # (position, d_head)
    role: Floats  # (position, d_head)
    centred: bool

    @property
    def mean(self) -> Floats:
        """The matrix about which variance is measured: (d_head, d_head)."""
        n, d_head = self.filler.shape
        return self.filler.T @ self.role / n if self.centred else np.zeros((d_head, d_head))

    @property
    def totals(self) -> Floats:
        """The squared distance of each tensor product from the mean: (position)."""
        mean = self.mean
        squares = np.square(self.filler).sum(axis=1) * np.square(self.role).sum(axis=1)
        crossed = ((self.filler @ mean) * self.role).sum(axis=1)
        return squares - 2 * crossed + np.square(mean).sum()

    def diagonals(self) -> Floats:
        """What the diagonal keeps of each one's squared distance: (position)."""
        kept: Floats = np.square(self.filler * self.role - np.diag(self.mean)).sum(axis=1)
        return kept

    def rotated(self, filler: Floats, role: Floats) -> "Products":
        """The same in other coordinates, the columns of two orthogonal matrices."""
        return Products(filler=self.filler @ filler, role=self.role @ role, centred=self.centred)

    def share(self) -> float:
        """What the diagonal keeps of all: `hadamard`."""
        kept = float(self.diagonals().sum() / self.totals.sum())
        return min(1.0, kept)  # rounding may leave it slightly above

    def along(self, directions: Floats) -> Floats:
        """What orthonormal directions (direction, d_head, d_head) keep of each one: (position)."""
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
        """The inner products of all pairs, for which no d_head^2 numbers are needed.

        (v_i (x) r_i) . (v_j (x) r_j) = (v_i . v_j) (r_i . r_j)
        """
        found = (self.filler @ self.filler.T) * (self.role @ self.role.T)
        if self.centred:
            found -= found.mean(axis=0)
            found -= found.mean(axis=1, keepdims=True)
        return found


def analyse(
    model: AnyModel,
    sample: Sample,
    *,
    where: str = ENCODER,
    layer: int | None = None,
    seed: int = 0,
) -> TensorProduct:
    """Measure it for every head of one layer or of all, beside fresh weights.

    In the decoder and across, positions are those of the right answer, which the decoder is given.
    """
    model = transformer_of(model)
    if model.config.binding == "none":
        raise UserError("this model binds nothing: its attention has no roles")
    layers = range(model.config.n_layers) if layer is None else [chosen_layer(model, layer)]
    names = {one: [point(where, one, name) for name in ("filler", "role")] for one in layers}
    fitted, scored, questions = _parts(sample, where, seed)
    drawn = (fresh(model, seed + number) for number in range(INITIAL_DRAWS))
    found = [
        _of_model(one, sample, names, fitted, scored, questions, seed) for one in (model, *drawn)
    ]
    return TensorProduct(
        seed=seed,
        where=where,
        binding=model.config.binding,
        d_head=model.config.d_model // model.config.n_heads,
        is_held_out=len(sample) > 1,
        n_fitted=len(fitted),
        n_scored=len(scored),
        heads=found[0],
        initial=tuple(found[1:]),
    )


def _parts(sample: Sample, where: str, seed: int) -> tuple[Ids, Ids, Ids]:
    """Positions to fit on, positions of other questions to score, and the latter's questions."""
    rng = np.random.default_rng(seed)
    if where == ENCODER:
        lengths = [len(question) + 2 for question in sample.questions]
    else:
        lengths = [len(answer) + 1 for answer in sample.answers]  # without the end
    question = np.repeat(np.arange(len(sample)), lengths)
    is_fitted = rng.permutation(len(sample))[question] < len(sample) / 2
    if len(sample) == 1:
        fitted = scored = np.arange(len(question))
    else:
        fitted, scored = np.flatnonzero(is_fitted), np.flatnonzero(~is_fitted)
    fitted = np.sort(rng.permutation(fitted)[:MOST_POSITIONS])
    scored = fitted if len(sample) == 1 else np.sort(rng.permutation(scored)[:MOST_POSITIONS])
    return fitted, scored, question[scored]


def _of_model(
    model: Transformer,
    sample: Sample,
    names_of: Mapping[int, Sequence[str]],  # each layer's points for fillers and roles
    fitted: Ids,
    scored: Ids,
    questions: Ids,
    seed: int,
) -> tuple[HeadShares, ...]:
    heads = []
    for layer, names in names_of.items():
        found = record(model, sample, names)
        filler, role = (found.flat(name).astype(np.float64) for name in names)
        for head in range(filler.shape[1]):
            both = (filler[:, head], role[:, head])
            shares = [
                measure(
                    Products(filler=both[0][fitted], role=both[1][fitted], centred=centred),
                    Products(filler=both[0][scored], role=both[1][scored], centred=centred),
                    questions,
                    seed,
                )
                for centred in (True, False)
            ]
            heads.append(HeadShares(layer=layer, head=head, centred=shares[0], raw=shares[1]))
    return tuple(heads)


def measure(fitted: Products, scored: Products, questions: Ids, seed: int = 0) -> Shares:
    """All shares of one head; `questions` has the question of each scored position."""
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


def _interval(scored: Products, questions: Ids) -> Interval | None:
    _, place = np.unique(questions, return_inverse=True)
    kept = np.bincount(place, scored.diagonals())
    total = np.bincount(place, scored.totals)
    return resample(len(kept), lambda counts: (counts @ kept) / (counts @ total))


def align(products: Products, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Rotations of fillers and roles after which the diagonal keeps much: section 7's M and N.

    The best of three starts: the model's own coordinates, so that nothing is lost, and two at
    random. In trained and planted heads, all starts came to the same share within 0.003.
    """
    d_head = products.filler.shape[1]
    starts = [
        (np.eye(d_head), np.eye(d_head)),
        *((_orthogonal(d_head, rng), _orthogonal(d_head, rng)) for _ in range(2)),
    ]
    ends = [_ascend(products, *start) for start in starts]
    return max(ends, key=lambda end: products.rotated(*end).share())


def _ascend(products: Products, filler: Floats, role: Floats) -> tuple[Floats, Floats]:
    """Improve rotations until they no longer gain.

    With N fixed, what is kept is a convex function of M, the sum over c of m_c^T C_c m_c. It lies
    above its tangent, and of all orthogonal matrices the polar factor of the gradient is highest on
    the tangent; so each such step keeps at least as much as the one before. The same for N.
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
    """Half the gradient of what is kept, by the rotation of the fillers."""
    turned = products.rotated(filler, role)
    kept = turned.filler * turned.role - np.diag(turned.mean)  # (position, d_head)
    # About the mean, the kept numbers add up to zero, so the mean's own gradient vanishes.
    return products.filler.T @ (kept * turned.role)


def _polar(matrix: Floats) -> Floats:
    """The orthogonal matrix nearest to a matrix."""
    left, _, right = np.linalg.svd(matrix)
    return left @ right


def _orthogonal(size: int, rng: np.random.Generator) -> Floats:
    """A rotation or reflection, each as likely as any other."""
    turned, scale = np.linalg.qr(rng.standard_normal((size, size)))
    return turned * np.sign(np.diag(scale))


def save(result: TensorProduct, context: Context, folder: str | Path) -> list[Path]:
    """Write the numbers and draw what is kept, beside initial weights."""
    name = "tensor-product" if result.where == ENCODER else f"tensor-product-{result.where}"
    path = outcome.write(folder, name, result.to_values(), context)
    return [path, *tensor_product_figure.draw(result, context, Path(folder), name)]
