"""What a head would attend to if it went by characters and distance alone.

The model of a structure-blind head: every pair of a key's character and its distance from the query
has a strength, one for each kind of query character, and a position divides its attention among the
keys of its question in proportion to their strengths (the choice model of Luce, 1959). A head that
looks at the nearest operator is such a head, and so is one that looks at its neighbours.

The strengths are fitted to some questions and applied to others, so that the model cannot learn by
heart where the heads look in the questions that it is scored on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FOLDS = 4  # a question is scored by strengths fitted to the questions of the other folds
ROUNDS = 20  # of fitting
PRIOR = 0.3  # how many occurrences of a cell weigh as much as the coarser model


def text_attention(
    weights: Sequence[Floats], texts: Sequence[str], *, seed: int = 0
) -> tuple[Floats, ...]:
    """The weights of structure-blind heads that are nearest to the given ones.

    Args:
        weights: attention to each text, (layer, head, query, key)
        texts: a character for each position
        seed: decides which texts are in one fold; equal texts always are
    """
    found = tuple(np.empty_like(own) for own in weights)
    folds = _folds(texts, seed)
    for queries in _queries(weights, texts):
        in_fold = folds[queries.text]
        for fold in np.unique(in_fold):
            scored = in_fold == fold
            strengths = queries.fit(~scored)
            for number in np.flatnonzero(scored):
                own = strengths[queries.keys_of(int(number))]  # (key, layer * head)
                text, at = int(queries.text[number]), int(queries.at[number])
                shape = (*found[text].shape[:2], len(own))
                found[text][:, :, at] = (own / own.sum(axis=0)).T.reshape(shape)
    return found


def kind(character: str) -> str:
    """The kind of a character: digits are alike, and letters; any other is a kind of its own."""
    if character.isdigit():
        return "digit"
    return "letter" if character.isalpha() else character


def _folds(texts: Sequence[str], seed: int) -> Integers:
    """The fold of each text."""
    unique, number = np.unique(np.array(texts), return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(unique)) % FOLDS)[number]


@dataclass(frozen=True, kw_only=True)
class _Queries:
    """All positions whose characters are of one kind, and the keys that each has."""

    text: Integers  # of each query: the number of its text
    at: Integers  # and its position there
    start: Integers  # the first of its keys among all keys, and one more at the end
    levels: tuple[Integers, ...]  # of each key: its cell in the coarsest to the finest model
    weights: Floats  # (key, layer * head)

    def keys_of(self, query: int) -> Integers:
        """The cells of a query's keys in the finest model."""
        return self.levels[-1][self.start[query] : self.start[query + 1]]

    def fit(self, chosen: npt.NDArray[np.bool_]) -> Floats:
        """The strengths of all cells of the finest model, (cell, layer * head).

        Each model's prior is the coarser model, which stands in where a cell occurs rarely or not
        at all among the chosen queries: distance alone, then the kind of the key's character as
        well, then the character itself.
        """
        of_key = np.repeat(chosen, np.diff(self.start))
        n_keys = np.diff(self.start)[chosen]
        indptr = np.concatenate([[0], np.cumsum(n_keys)])
        weights = self.weights[of_key]
        strengths = np.full((1, weights.shape[1]), 1 / max(n_keys.mean(), 1) if len(n_keys) else 1)
        parents = np.zeros(len(self.levels[0]), np.int64)
        for cells in self.levels:
            n_cells = int(cells.max()) + 1
            parent = np.zeros(n_cells, np.int64)
            parent[cells] = parents
            shape = (len(n_keys), n_cells)
            there = csr_array((np.ones(len(weights)), cells[of_key], indptr), shape=shape)
            strengths = _strengths(there, weights, strengths[parent])
            parents = cells
        return strengths


def _queries(weights: Sequence[Floats], texts: Sequence[str]) -> Iterator[_Queries]:
    """The queries of each kind."""
    farthest = max(map(len, texts), default=0)
    kinds = [[kind(character) for character in text] for text in texts]
    numbered = {name: number for number, name in enumerate(sorted({*"".join(texts)}))}
    of_kind = {
        name: number for number, name in enumerate(sorted({k for row in kinds for k in row}))
    }
    for name in of_kind:
        places = [
            (text, at)
            for text, row in enumerate(kinds)
            for at, own in enumerate(row)
            if own == name
        ]
        n_keys = [len(texts[text]) for text, _ in places]
        distance = np.concatenate(
            [
                np.arange(farthest - at, farthest - at + n)
                for (_, at), n in zip(places, n_keys, strict=True)
            ]
        )
        character = np.array([numbered[one] for text, _ in places for one in texts[text]])
        key_kind = np.array([of_kind[one] for text, _ in places for one in kinds[text]])
        cells = (distance, key_kind * 2 * farthest + distance, character * 2 * farthest + distance)
        yield _Queries(
            text=np.array([text for text, _ in places]),
            at=np.array([at for _, at in places]),
            start=np.concatenate([[0], np.cumsum(n_keys)]),
            levels=tuple(np.unique(own, return_inverse=True)[1] for own in cells),
            weights=np.concatenate(
                [
                    weights[text][:, :, at].reshape(-1, n).T
                    for (text, at), n in zip(places, n_keys, strict=True)
                ]
            ),
        )


def _strengths(there: csr_array, weights: Floats, prior: Floats) -> Floats:
    """The most probable strength of each cell, (cell, head), given the attention to keys.

    The steps of Hunter (2004), each of which makes the posterior greater, with the gamma prior of
    Caron and Doucet (2012). A plain mean of attention by cell would go wrong where some questions
    have few keys that a head cares for, and others many.
    """
    select = csr_array(
        (there.data, there.indices, np.arange(len(weights) + 1)),
        shape=(len(weights), there.shape[1]),
    )
    total = select.T.tocsr() @ weights
    back = there.T.tocsr()
    strengths = prior
    for _ in range(ROUNDS):
        exposure = back @ (1 / (there @ strengths))
        strengths = (total + PRIOR * prior) / (exposure + PRIOR)
    return strengths
