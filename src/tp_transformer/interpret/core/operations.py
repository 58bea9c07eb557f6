"""Operations on role vectors, and the answers of a model under such an operation.

An operation maps the roles of one question in the chosen heads, without padding, to new roles.
`predict` applies it during the forward pass and judges the answers under teacher forcing; `solve`
applies it during decoding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tp_transformer.interpret.core.record import (
    ENCODER,
    Activations,
    Booleans,
    Floats,
    Integers,
    nearest,
    point,
)
from tp_transformer.interpret.core.sample import Sample, token_characters
from tp_transformer.model.batch import Batch
from tp_transformer.model.loss import token_losses
from tp_transformer.model.solver import evaluating
from tp_transformer.model.trace import Edit
from tp_transformer.model.transformer import Transformer

# From the index of a question in the sample and its roles, (head, position, d_head), to new roles.
RoleOperation = Callable[[int, Tensor], Tensor]

SAME_DISTANCE = 0.05  # relative difference below which two distances count as equal
MOST_DONORS = 1_024  # of each head: the time is proportional to positions times donors
UNMOVED = 1e-5  # relative to the length of a role: a movement that rounding may cause


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """The predicted answer to each question, its correctness and the surprisal of the right one."""

    tokens: list[tuple[int, ...]]  # the likeliest tokens, given the right tokens before each
    right: Booleans
    surprise: Floats  # negative log-likelihood of the right answer in nats
    touched: float  # share of the roles of the chosen heads that moved
    moved: float  # mean distance of these, relative to their mean length


def predict(
    model: Transformer,
    sample: Sample,
    *,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    operation: RoleOperation | None = None,
) -> Predictions:
    """Predict answers under teacher forcing, with an operation on some heads of encoder layers."""
    tokens: list[tuple[int, ...]] = [()] * len(sample)
    right = np.zeros(len(sample), bool)
    surprise = np.zeros(len(sample))
    moves = [np.zeros((0, 2))]
    device = next(model.parameters()).device
    for indices, part in sample.batches():
        batch = Batch.from_text(part.questions, part.answers, model.vocabulary).to(device)
        edits: dict[str, Edit] = {}
        if operation is not None:
            edit = _edit(operation, heads, part.questions, indices, moves)
            edits = {role_of(layer): edit for layer in layers}
        with evaluating(model), torch.no_grad(), model.trace(edit=edits):
            logits = model(batch)
        likeliest = logits.argmax(dim=-1)
        losses = token_losses(logits, batch).double()
        for row, (index, mask) in enumerate(zip(indices, batch.target_mask, strict=True)):
            tokens[index] = tuple(likeliest[row, mask].tolist())
            right[index] = torch.equal(likeliest[row, mask], batch.target_output[row, mask])
            surprise[index] = float(losses[row].sum())
    moved, length = np.concatenate(moves).T  # of each role
    is_moved = moved > UNMOVED * length
    return Predictions(
        tokens=tokens,
        right=right,
        surprise=surprise,
        touched=float(is_moved.mean()) if len(moved) else 0.0,
        moved=float(moved[is_moved].sum() / length[is_moved].sum()) if is_moved.any() else 0.0,
    )


def solve(
    model: Transformer,
    questions: Sequence[str],
    *,
    heads: Sequence[int],
    operations: Mapping[int, RoleOperation],
) -> list[str]:
    """Decode answers, with an operation on the roles of some heads in each of some layers."""
    indices = range(len(questions))
    edits = {
        role_of(layer): _edit(operation, heads, questions, indices, [])
        for layer, operation in operations.items()
    }
    with model.trace(edit=edits):
        return model.solve(questions)


def role_of(layer: int) -> str:
    """Return the name of the trace point of the roles in an encoder layer."""
    return point(ENCODER, layer, "role")


def _edit(
    operation: RoleOperation,
    heads: Sequence[int],
    questions: Sequence[str],
    indices: Sequence[int],
    moves: list[Floats],
) -> Edit:
    """Return an edit that applies an operation to the padded roles of a batch of questions.

    `indices` are those of the questions in the sample. The edit appends to `moves` how far each
    role was moved and how long it was: (role, 2).
    """

    def edit(roles: Tensor) -> Tensor:
        for row, (index, question) in enumerate(zip(indices, questions, strict=True)):
            unpadded = roles[row, :, : len(token_characters(question))]
            before = unpadded[list(heads)]
            after = operation(index, before)
            both = torch.stack([(after - before).norm(dim=-1), before.norm(dim=-1)], dim=-1)
            moves.append(both.flatten(0, 1).double().cpu().numpy())
            unpadded[list(heads)] = after
        return roles

    return edit


def zeroed() -> RoleOperation:
    """Replace roles by zeros."""
    return lambda _, roles: torch.zeros_like(roles)


def randomised(seed: int) -> RoleOperation:
    """Replace roles by random vectors of the same lengths."""

    def operation(question: int, roles: Tensor) -> Tensor:
        return _directions(seed, question, roles) * roles.norm(dim=-1, keepdim=True)

    return operation


def swapped(seed: int, positions: Sequence[Sequence[int]] | None = None) -> RoleOperation:
    """Exchange random pairs of roles within each question, at all or at given positions.

    If their number is odd, one role is unchanged.
    """

    def operation(question: int, roles: Tensor) -> Tensor:
        chosen = range(roles.shape[1]) if positions is None else positions[question]
        drawn = np.random.default_rng([seed, question, 1]).permutation(chosen).tolist()
        half = len(drawn) // 2
        first, second = drawn[:half], drawn[half : 2 * half]
        changed = roles.clone()
        changed[:, first + second] = roles[:, second + first]
        return changed

    return operation


def as_far(seed: int, other: RoleOperation) -> RoleOperation:
    """Move each role in a random direction, by the distance that another operation moves it."""

    def operation(question: int, roles: Tensor) -> Tensor:
        distance = (other(question, roles) - roles).norm(dim=-1, keepdim=True)
        return roles + _directions(seed, question, roles) * distance

    return operation


def _directions(seed: int, question: int, roles: Tensor) -> Tensor:
    drawn = np.random.default_rng([seed, question]).standard_normal(tuple(roles.shape))
    drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
    return torch.from_numpy(drawn).to(roles)


def moved_to(centroids: Floats) -> RoleOperation:
    """Replace each role by the nearest centroid of its head: (chosen head, cluster, d_head)."""
    head = np.arange(len(centroids))[:, None]

    def operation(_: int, roles: Tensor) -> Tensor:
        index = nearest(roles.double().cpu().numpy(), centroids)
        return torch.from_numpy(centroids[head, index]).to(roles)

    return operation


def replaced(others: Sequence[Floats]) -> RoleOperation:
    """Replace roles by given vectors: for each question (head, position, d_head)."""
    return lambda question, roles: torch.from_numpy(others[question]).to(roles)


def moved_from(
    others: Sequence[Activations],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
) -> RoleOperation:
    """Replace roles at target positions by given roles of source positions, question by question.

    Args:
        others: roles of other questions of the same lengths: for each (head, position, d_head)
        sources: positions in `others`
        targets: positions in the questions, in the order of `sources`
    """

    def operation(question: int, roles: Tensor) -> Tensor:
        taken = others[question][:, list(sources[question])]
        changed = roles.clone()
        changed[:, list(targets[question])] = torch.from_numpy(taken).to(roles)
        return changed

    return operation


def at(positions: Sequence[Sequence[int]], operation: RoleOperation) -> RoleOperation:
    """Restrict an operation to some source positions of each question."""

    def restricted(question: int, roles: Tensor) -> Tensor:
        chosen = list(positions[question])
        changed = roles.clone()
        changed[:, chosen] = operation(question, roles)[:, chosen]
        return changed

    return restricted


def donors(
    roles: Sequence[Floats], clusters: Sequence[Integers], rng: np.random.Generator
) -> tuple[list[Floats], list[Floats]]:
    """Find two donors for each role: of its own cluster, and of another cluster as far away.

    Both donors are at the same distance, so a difference between their effects is not a difference
    in distance. They may come from any question. A role without two such donors is unchanged in
    both results; if clusters lie far apart, there are no donors.

    Args:
        roles: for each question (head, position, d_head)
        clusters: for each question (head, position)
        rng: source of the random donors of the same cluster
    """
    all_roles, all_clusters = np.concatenate(roles, axis=1), np.concatenate(clusters, axis=1)
    pool = rng.permutation(all_roles.shape[1])[:MOST_DONORS]
    within, across = [piece.copy() for piece in roles], [piece.copy() for piece in roles]
    for question, piece in enumerate(roles):
        for head, others in enumerate(all_roles[:, pool]):
            is_same = clusters[question][head][:, None] == all_clusters[head, pool]
            rows, same, other = _as_far_away(_distances(piece[head], others), is_same, rng)
            within[question][head, rows] = others[same]
            across[question][head, rows] = others[other]
    return within, across


def _distances(vectors: Floats, others: Floats) -> Floats:
    """Return the distance of each vector from each other vector: (vector, other)."""
    squares = np.square(vectors).sum(axis=1)[:, None] + np.square(others).sum(axis=1)
    apart: Floats = np.sqrt(np.maximum(squares - 2 * vectors @ others.T, 0))
    return apart


def _as_far_away(
    distances: Floats, is_same: Booleans, rng: np.random.Generator
) -> tuple[Integers, Integers, Integers]:
    """Find, for each row, a random donor of the same cluster and one of another at that distance.

    Args:
        distances: (row, donor)
        is_same: whether a donor has the cluster of the row, (row, donor)
        rng: source of the random choice

    Returns:
        the rows that have two such donors, their donors of the same cluster, and the others
    """
    order = distances.argsort(axis=1)
    distances = np.take_along_axis(distances, order, axis=1)
    is_same = np.take_along_axis(is_same, order, axis=1)
    n = distances.shape[1]
    column = np.arange(n)
    # In the order of distances: the nearest donor of another cluster on either side.
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
    rows: Integers = np.flatnonzero(fits.any(axis=1))
    same = np.where(fits, rng.random(fits.shape), -1.0).argmax(axis=1)[rows]
    other = np.where(gaps[0] <= gaps[1], nearer, farther)[rows, same]
    return rows, order[rows, same], order[rows, other]
