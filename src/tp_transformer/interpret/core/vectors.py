"""Arrays of vectors: their types, and clusters by k-means."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tp_transformer.errors import SettingsError, UserError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Activations = npt.NDArray[np.float32]

STARTS = 10  # of k-means, of which the best is kept


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
