"""Activations at the named points of a model, question by question, and clusters of them.

The answers are teacher-forced, not decoded: where an answer is correct, the decoder's points have
the values that they have in greedy decoding.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tp_transformer.data.vocabulary import Ids, Ragged
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.model.batch import Batch
from tp_transformer.model.checkpoint import AnyModel, from_config
from tp_transformer.model.solver import evaluating
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.progress import track

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Activations = npt.NDArray[np.float32]

STARTS = 10  # of k-means, of which the best is kept
ENCODER, DECODER, CROSS = "encoder", "decoder", "cross"
ATTENTIONS = {
    ENCODER: "encoder.{}.self_attention",
    DECODER: "decoder.{}.self_attention",
    CROSS: "decoder.{}.cross_attention",
}
TITLES = {
    ENCODER: "Encoder self-attention",
    DECODER: "Decoder self-attention",
    CROSS: "Attention of the decoder to the question",
}


def point(where: str, layer: int, name: str) -> str:
    """Return the full name of a point, such as `role`, of the attention in a layer."""
    return f"{ATTENTIONS[where].format(layer)}.{name}"


def untrained(model: Transformer, seed: int) -> Transformer:
    """Return a model of the same configuration with reinitialised weights.

    The weights differ from those that training of this model started from.
    """
    parameter = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        other = from_config(model.config, model.vocabulary)
    assert isinstance(other, Transformer)  # noqa: S101  for the type checker
    return other.to(parameter.device, parameter.dtype).eval()


def untrained_models(
    model: Transformer, seed: int, count: int, title: str
) -> Iterator[Transformer]:
    """Iterate over models with reinitialised weights, the controls of an analysis."""
    for draw in track(title, range(count)):
        yield untrained(model, seed + draw)


class Recording(dict[str, list[Activations]]):
    """Activations by name of their point: for each question of a sample, without padding.

    They are (head, position, d_head), states (position, d_model), and attention weights
    (head, query, key).
    """

    def flat(self, name: str) -> Activations:
        """Return the vectors of all questions, concatenated: (position, head, d_head).

        States have no head axis: (position, d_model).
        """
        pieces = self[name]
        if pieces[0].ndim == 2:
            return np.concatenate(pieces)
        return np.concatenate([piece.transpose(1, 0, 2) for piece in pieces])


def record(model: AnyModel, sample: Sample, names: Sequence[str]) -> Recording:
    """Run the model over a sample and keep the activations at the named points (no wildcards)."""
    pieces: dict[str, list[Activations]] = {name: [] for name in names}
    device = next(model.parameters()).device
    order: list[int] = []
    at_keys = {"key", "value"}
    if isinstance(model, Transformer) and model.config.weightless_binding().binds_values:
        at_keys.add("role")
    with evaluating(model), torch.no_grad(), model.trace(*names) as trace:
        for indices, part in sample.batches():
            source = model.vocabulary.encode(part.questions)
            target = model.vocabulary.encode(part.answers)
            model(Batch.from_ragged(source, target, model.vocabulary.pad).to(device))
            for name in names:
                queries, keys = _lengths(name, source, target)
                rows = trace[name].float().cpu().numpy()
                pieces[name] += _unpadded(rows, name.rpartition(".")[2], at_keys, queries, keys)
            order += indices
    places = np.argsort(order)
    return Recording({name: [piece[place] for place in places] for name, piece in pieces.items()})


def _lengths(name: str, source: Ragged, target: Ragged) -> tuple[Ids, Ids]:
    """Return the numbers of query and key positions at a point, for each question."""
    in_decoder = name.startswith("decoder")
    answers = target.lengths - 1  # decoder inputs: without the end token
    to_answer = in_decoder and name.rpartition(".")[0].endswith("self_attention")
    return (answers if in_decoder else source.lengths), (answers if to_answer else source.lengths)


def _unpadded(
    rows: Activations, point: str, at_keys: Collection[str], queries: Ids, keys: Ids
) -> list[Activations]:
    """Return the rows of a padded tensor, each cut to its own length."""
    if point == "weights":
        return [
            row[:, :query, :key].copy() for row, query, key in zip(rows, queries, keys, strict=True)
        ]
    positions = keys if point in at_keys else queries
    return [row[..., :length, :].copy() for row, length in zip(rows, positions, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Clustering:
    """Clusters, numbered along the first principal direction of their centroids.

    Clusters with similar numbers therefore tend to be similar, and so do their colours.
    """

    assigned: Integers  # (vector,)
    centroids: Floats  # (cluster, d_head)


def cluster(vectors: Floats, n_clusters: int, seed: int) -> Clustering:
    """Cluster vectors by scikit-learn's k-means."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise UserError(
            "clusters need scikit-learn: pip install 'tp-transformer[interpret]'"
        ) from error
    n_distinct = len(np.unique(vectors, axis=0))
    if not 1 <= n_clusters <= n_distinct:
        raise SettingsError(
            f"{n_clusters} clusters cannot be made of {n_distinct} different vectors: "
            "ask for fewer, or give more questions"
        )
    fitted = KMeans(n_clusters, n_init=STARTS, random_state=seed).fit(vectors)
    centred = fitted.cluster_centers_ - fitted.cluster_centers_.mean(axis=0)
    direction = np.linalg.svd(centred, full_matrices=False)[2][0]
    direction *= np.sign(direction[np.abs(direction).argmax()])
    order = np.argsort(centred @ direction, kind="stable")
    return Clustering(
        assigned=np.argsort(order)[fitted.labels_].astype(np.int64),
        centroids=fitted.cluster_centers_[order],
    )


def nearest(vectors: Floats, centroids: Floats) -> Integers:
    """Return the nearest of centroids (…, cluster, d_head) to vectors (…, position, d_head)."""
    # |v - c|^2 without |v|^2, which does not depend on the cluster.
    squares = np.square(centroids).sum(axis=-1)[..., None, :]
    index: Integers = (squares - 2 * vectors @ centroids.swapaxes(-1, -2)).argmin(axis=-1)
    return index
