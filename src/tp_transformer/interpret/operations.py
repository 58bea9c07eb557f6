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
from tp_transformer.interpret.record import ENCODER, Sample, point, portions, symbols
from tp_transformer.model.loss import token_losses
from tp_transformer.model.solver import evaluating
from tp_transformer.model.trace import Edit
from tp_transformer.model.transformer import Transformer

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
# The number of a question in the sample and its roles, (head, position, d_head): the new roles.
Operation = Callable[[int, Tensor], Tensor]

SAME_DISTANCE = 0.05  # how much two distances may differ, as a share, to count as the same
MOST_DONORS = 1_024  # of each head: the time grows with positions times donors
UNMOVED = 1e-5  # of its length: what rounding may move a role


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Of each question: what was said, whether it is right, its surprise at the right answer."""

    said: list[tuple[int, ...]]  # the likeliest symbols, each given the right ones before it
    right: Bools
    surprise: Floats  # negative log-likelihood in nats
    touched: float  # the share of the roles of these heads that were moved at all
    moved: float  # how far these were moved, as a share of their lengths


def ask(
    model: Transformer,
    sample: Sample,
    *,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    operation: Operation | None = None,
) -> Asked:
    """Judge a model's answers, with the roles of some heads of encoder layers operated on."""
    said: list[tuple[int, ...]] = [()] * len(sample)
    right = np.zeros(len(sample), bool)
    surprise = np.zeros(len(sample))
    moves = [np.zeros((0, 2))]
    device = next(model.parameters()).device
    for numbers, few in portions(sample):
        batch = Batch.from_text(few.questions, few.answers, model.vocabulary).to(device)
        edits: dict[str, Edit] = {}
        if operation is not None:
            edit = _edit(operation, heads, few.questions, numbers, moves)
            edits = {role_of(layer): edit for layer in layers}
        with evaluating(model), torch.no_grad(), model.trace(edit=edits):
            logits = model(batch)
        likeliest = logits.argmax(dim=-1)
        losses = token_losses(logits, batch).double()
        for row, (number, mask) in enumerate(zip(numbers, batch.target_mask, strict=True)):
            said[number] = tuple(likeliest[row, mask].tolist())
            right[number] = torch.equal(likeliest[row, mask], batch.target_output[row, mask])
            surprise[number] = float(losses[row].sum())
    moved, length = np.concatenate(moves).T  # of each role
    is_moved = moved > UNMOVED * length
    return Asked(
        said=said,
        right=right,
        surprise=surprise,
        touched=float(is_moved.mean()) if len(moved) else 0.0,
        moved=float(moved[is_moved].sum() / length[is_moved].sum()) if is_moved.any() else 0.0,
    )


def solve(
    model: Transformer,
    questions: Sequence[str],
    *,
    layers: Sequence[int],
    heads: Sequence[int],
    operation: Operation,
) -> list[str]:
    """What a model answers, with the roles of some heads of encoder layers operated on."""
    edit = _edit(operation, heads, questions, range(len(questions)), [])
    with model.trace(edit={role_of(layer): edit for layer in layers}):
        return model.solve(questions)


def role_of(layer: int) -> str:
    """The name of the point that the roles of an encoder layer pass."""
    return point(ENCODER, layer, "role")


def _edit(
    operation: Operation,
    heads: Sequence[int],
    questions: Sequence[str],
    numbers: Sequence[int],
    moves: list[Floats],
) -> Edit:
    """An operation on the roles of each question, as an edit of the padded roles of a batch.

    Each question has its number in the sample. How far its roles were moved and how long they were
    is added to `moves`: (role, 2).
    """

    def edit(roles: Tensor) -> Tensor:
        for row, (number, question) in enumerate(zip(numbers, questions, strict=True)):
            own = roles[row, :, : len(symbols(question))]
            before = own[list(heads)]
            after = operation(number, before)
            both = torch.stack([(after - before).norm(dim=-1), before.norm(dim=-1)], dim=-1)
            moves.append(both.flatten(0, 1).double().cpu().numpy())
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


def swapped(seed: int, positions: Sequence[Sequence[int]] | None = None) -> Operation:
    """Exchange the roles of a question in pairs at random, all or those of some positions.

    Of an odd number of roles one stays where it is.
    """

    def operation(question: int, roles: Tensor) -> Tensor:
        chosen = range(roles.shape[1]) if positions is None else positions[question]
        drawn = np.random.default_rng([seed, question, 1]).permutation(chosen).tolist()
        half = len(drawn) // 2
        one, other = drawn[:half], drawn[half : 2 * half]
        changed = roles.clone()
        changed[:, one + other] = roles[:, other + one]
        return changed

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


def replaced(others: Sequence[Floats]) -> Operation:
    """Put other vectors in the place of the roles: for each question (head, position, d_head)."""
    return lambda question, roles: torch.from_numpy(others[question]).to(roles)


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


def donors(
    roles: Sequence[Floats], clusters: Sequence[Ids], rng: np.random.Generator
) -> tuple[list[Floats], list[Floats]]:
    """For each role one of the same cluster, and one of another cluster that is as far away.

    Both have the same place to go to and the same way to it, so that whatever tells their effects
    apart is not how far a role was moved. They come from anywhere in the sample. A role without
    two such donors keeps its place in both: where clusters lie far apart, there are none.

    Args:
        roles: of each question (head, position, d_head)
        clusters: of each question (head, position)
        rng: draws the donors of the same cluster
    """
    every, cluster_of_every = np.concatenate(roles, axis=1), np.concatenate(clusters, axis=1)
    pool = rng.permutation(every.shape[1])[:MOST_DONORS]
    within, across = [own.copy() for own in roles], [own.copy() for own in roles]
    for question, own in enumerate(roles):
        for head, others in enumerate(every[:, pool]):
            is_same = clusters[question][head][:, None] == cluster_of_every[head, pool]
            found, same, other = _as_far_away(_distances(own[head], others), is_same, rng)
            within[question][head, found] = others[same]
            across[question][head, found] = others[other]
    return within, across


def _distances(vectors: Floats, others: Floats) -> Floats:
    """From each vector to each other one: (vector, other)."""
    squares = np.square(vectors).sum(axis=1)[:, None] + np.square(others).sum(axis=1)
    apart: Floats = np.sqrt(np.maximum(squares - 2 * vectors @ others.T, 0))
    return apart


def _as_far_away(
    distances: Floats, is_same: Bools, rng: np.random.Generator
) -> tuple[Ids, Ids, Ids]:
    """For each row a random one of the same cluster for which another cluster has one as far away.

    Args:
        distances: (row, other)
        is_same: whether an other one has the row's cluster, (row, other)
        rng: draws

    Returns:
        the rows that have such two, and of each the one of the same cluster and the other one
    """
    order = distances.argsort(axis=1)
    distances = np.take_along_axis(distances, order, axis=1)
    is_same = np.take_along_axis(is_same, order, axis=1)
    n = distances.shape[1]
    column = np.arange(n)
    # The places of the nearest ones of other clusters, on either side in the order of distances.
    nearer = np.maximum.accumulate(np.where(is_same, -1, column), axis=1)
    farther = np.minimum.accumulate(np.where(is_same, n, column)[:, ::-1], axis=1)[:, ::-1]
    gaps = np.stack(
        [
            np.where(
                (place >= 0) & (place < n),
                np.abs(np.take_along_axis(distances, place.clip(0, n - 1), axis=1) - distances),
                np.inf,
            )
            for place in (nearer, farther)
        ]
    )
    fits = is_same & (gaps.min(axis=0) < SAME_DISTANCE * distances)
    rows: Ids = np.flatnonzero(fits.any(axis=1))
    same = np.where(fits, rng.random(fits.shape), -1.0).argmax(axis=1)[rows]
    other = np.where(gaps[0] <= gaps[1], nearer, farther)[rows, same]
    return rows, order[rows, same], order[rows, other]
