"""Operations on role vectors, and the answers of a model whose roles are operated on.

An operation gets the roles of one question in the heads that are operated on, without padding, and
returns new ones. `ask` applies it while the model reads, and judges the answers by one pass under
teacher forcing, as everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tp_transformer.data.batch import Batch
from tp_transformer.interpret.record import AT_ONCE, Sample, symbols
from tp_transformer.model.base import evaluating
from tp_transformer.model.trace import Edit
from tp_transformer.model.transformer import Transformer

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
# The number of a question in the sample and its roles, (head, position, d_head): the new roles.
Operation = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Of each question: what was said, whether it is right, its surprise at the right answer."""

    said: list[
        tuple[int, ...]
    ]  # the likeliest symbol at each position, given the right ones before
    right: Bools
    surprise: Floats  # negative log-likelihood in nats
    moved: float  # how far the operated roles were moved, as a share of their lengths


def ask(
    model: Transformer,
    sample: Sample,
    *,
    layer: int = 0,
    heads: Sequence[int] = (),
    operation: Operation | None = None,
) -> Asked:
    """Judge a model's answers, with the roles of some heads of an encoder layer operated on."""
    said: list[tuple[int, ...]] = []
    right: list[bool] = []
    surprise: list[float] = []
    moves: list[tuple[float, float]] = []
    device = next(model.parameters()).device
    for start in range(0, len(sample), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        questions, answers = sample.questions[rows], sample.answers[rows]
        batch = Batch.from_text(questions, answers, model.vocabulary).to(device)
        edits: dict[str, Edit] = {}
        if operation is not None:
            edits[role_of(layer)] = _edit(operation, heads, questions, start, moves)
        with evaluating(model), torch.no_grad(), model.trace(edit=edits):
            scores = model(batch.source, batch.target_input).float()
        likeliest = scores.argmax(dim=-1)
        wanted = scores.log_softmax(dim=-1).gather(2, batch.target_output[..., None])[..., 0]
        for row, mask in enumerate(batch.target_mask):
            said.append(tuple(likeliest[row, mask].tolist()))
            right.append(torch.equal(likeliest[row, mask], batch.target_output[row, mask]))
            surprise.append(-float(wanted[row, mask].double().sum()))
    moved, length = np.sum(moves, axis=0) if moves else (0.0, 1.0)
    return Asked(
        said=said,
        right=np.array(right),
        surprise=np.array(surprise),
        moved=float(moved / length) if length else 0.0,
    )


def role_of(layer: int) -> str:
    """The name of the point that the roles of an encoder layer pass."""
    return f"encoder.{layer}.self_attention.role"


def _edit(
    operation: Operation,
    heads: Sequence[int],
    questions: Sequence[str],
    first: int,
    moves: list[tuple[float, float]],
) -> Edit:
    """An operation on the roles of each question, as an edit of the padded roles of a batch.

    How far it moved them and how long they were is added to `moves`.
    """

    def edit(roles: Tensor) -> Tensor:
        for row, question in enumerate(questions):
            own = roles[row, :, : len(symbols(question))]
            before = own[list(heads)]
            after = operation(first + row, before)
            moves.append(
                (float((after - before).norm(dim=-1).sum()), float(before.norm(dim=-1).sum()))
            )
            own[list(heads)] = after
        return roles

    return edit


def zeroed() -> Operation:
    """Remove the roles."""
    return lambda _, roles: torch.zeros_like(roles)


def randomised(seed: int) -> Operation:
    """Put random vectors of the same lengths in their place."""

    def operation(question: int, roles: Tensor) -> Tensor:
        return _directions(seed, question, roles) * roles.norm(dim=-1, keepdim=True)

    return operation


def as_far(seed: int, other: Operation) -> Operation:
    """Move each role as far as another operation does, in a random direction."""

    def operation(question: int, roles: Tensor) -> Tensor:
        distance = (other(question, roles) - roles).norm(dim=-1, keepdim=True)
        return roles + _directions(seed, question, roles) * distance

    return operation


def _directions(seed: int, question: int, roles: Tensor) -> Tensor:
    """Random vectors of length 1, one for each role."""
    drawn = np.random.default_rng([seed, question]).standard_normal(tuple(roles.shape))
    drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
    return torch.from_numpy(drawn).to(roles)


def moved_to(centroids: Floats) -> Operation:
    """Put the nearest centroid in the place of each role: (head, cluster, d_head).

    The heads are those that are operated on.
    """
    head = np.arange(len(centroids))[:, None]

    def operation(_: int, roles: Tensor) -> Tensor:
        found = nearest(roles.double().cpu().numpy(), centroids)
        return torch.from_numpy(centroids[head, found]).to(roles)

    return operation


def swapped(pairs: Sequence[tuple[int, int]]) -> Operation:
    """Exchange the roles of two positions of each question, in all heads operated on."""

    def operation(question: int, roles: Tensor) -> Tensor:
        one, other = pairs[question]
        changed = roles.clone()
        changed[:, [one, other]] = roles[:, [other, one]]
        return changed

    return operation


def reordered(orders: Sequence[Ids]) -> Operation:
    """Take the roles of other positions: for each question which ones, (head, position)."""

    def operation(question: int, roles: Tensor) -> Tensor:
        head = torch.arange(len(roles))[:, None]
        return roles[head, torch.from_numpy(orders[question])]

    return operation


def at(positions: Sequence[Sequence[int]], operation: Operation) -> Operation:
    """Operate only at some source positions of each question."""

    def restricted(question: int, roles: Tensor) -> Tensor:
        chosen = list(positions[question])
        changed = roles.clone()
        changed[:, chosen] = operation(question, roles)[:, chosen]
        return changed

    return restricted


def nearest(vectors: Floats, centroids: Floats) -> Ids:
    """The cluster of each vector (…, position, d_head) among centroids (…, cluster, d_head)."""
    # |v - c|^2 without |v|^2, which is the same for all clusters.
    apart = np.square(centroids).sum(axis=-1)[..., None, :] - 2 * vectors @ centroids.swapaxes(
        -1, -2
    )
    found: Ids = apart.argmin(axis=-1)
    return found


def exchanges(clusters: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Orders of positions: pairs within clusters exchanged, and as many pairs across clusters.

    Where too few pairs differ, there are fewer of them in both.
    """
    order = rng.permutation(len(clusters))
    within = _pairs(order, lambda one, other: bool(clusters[one] == clusters[other]))
    order = rng.permutation(len(clusters))
    across = _pairs(order, lambda one, other: bool(clusters[one] != clusters[other]))
    count = min(len(within), len(across))
    both = []
    for pairs in (within[:count], across[:count]):
        positions = np.arange(len(clusters))
        for one, other in pairs:
            positions[one], positions[other] = other, one
        both.append(positions)
    return both[0], both[1]


def _pairs(order: Ids, fits: Callable[[int, int], bool]) -> list[tuple[int, int]]:
    """Pair each position with the next free one that fits."""
    free, pairs = order.tolist(), []
    while free:
        one = free.pop(0)
        partner = next((other for other in free if fits(one, other)), None)
        if partner is not None:
            free.remove(partner)
            pairs.append((one, partner))
    return pairs
