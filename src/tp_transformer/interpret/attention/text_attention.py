"""Structure-blind heads: attention that depends on characters and distance only.

In the model of a structure-blind head, every pair of a key's character and its distance from the
query has a strength, for each kind of query character. A query divides its attention among the keys
of its question in proportion to their strengths (the choice model of Luce, 1959). A head that
attends to the nearest operator, or to its neighbours, is such a head.

Strengths are fitted on some questions and applied to others, so that the model cannot memorise the
attention in the questions that it is scored on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from tp_transformer.interpret.core.vectors import Booleans, Floats, Integers

FOLDS = 4  # strengths are fitted on the questions of the other folds
ROUNDS = 20  # iterations of the fit
PRIOR = 0.3  # weight of the coarser model, in occurrences of a cell


def text_attention(weights: Sequence[Floats], texts: Sequence[str]) -> tuple[Floats, ...]:
    """Return the weights of the structure-blind heads that are nearest to the given weights.

    Args:
        weights: attention to each text, (layer, head, query, key)
        texts: one character for each position
    """
    predicted = tuple(np.empty_like(fitted) for fitted in weights)
    # Equal texts are in the same fold.
    unique, text_number = np.unique(np.array(texts), return_inverse=True)
    folds = (np.random.default_rng(0).permutation(len(unique)) % FOLDS)[text_number]
    for queries in _queries(weights, texts):
        in_fold = folds[queries.text]
        for fold in np.unique(in_fold):
            scored = in_fold == fold
            strengths = queries.fit(~scored)
            for number in np.flatnonzero(scored):
                fitted = strengths[queries.keys_of(int(number))]  # (key, layer * head)
                text, at = int(queries.text[number]), int(queries.at[number])
                shape = (*predicted[text].shape[:2], len(fitted))
                predicted[text][:, :, at] = (fitted / fitted.sum(axis=0)).T.reshape(shape)
    return predicted


def kind(character: str) -> str:
    """Return the kind of a character: digit, letter, or the character itself."""
    if character.isdigit():
        return "digit"
    return "letter" if character.isalpha() else character


@dataclass(frozen=True, kw_only=True)
class _Queries:
    """All query positions whose characters are of one kind, and their keys."""

    text: Integers  # (query,): index of the text
    at: Integers  # (query,): position in the text
    start: Integers  # (query + 1,): index of the first key of each query among all keys
    levels: tuple[Integers, ...]  # (key,): the cell of each key, from the coarsest to the finest
    weights: Floats  # (key, layer * head)

    def keys_of(self, query: int) -> Integers:
        """Return the cells of the keys of a query in the finest model."""
        return self.levels[-1][self.start[query] : self.start[query + 1]]

    def fit(self, chosen: Booleans) -> Floats:
        """Fit the strengths of all cells of the finest model, (cell, layer * head).

        The prior of each model is the next coarser model, which decides where a cell is rare among
        the chosen queries. The models use distance alone, then also the kind of the key's
        character, then the character itself.
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
            for at, kind_of in enumerate(row)
            if kind_of == name
        ]
        n_keys = [len(texts[text]) for text, _ in places]
        distance = np.concatenate(
            [
                np.arange(farthest - at, farthest - at + n)
                for (_, at), n in zip(places, n_keys, strict=True)
            ]
        )
        character = np.array([numbered[token] for text, _ in places for token in texts[text]])
        key_kind = np.array([of_kind[token] for text, _ in places for token in kinds[text]])
        cells = (distance, key_kind * 2 * farthest + distance, character * 2 * farthest + distance)
        yield _Queries(
            text=np.array([text for text, _ in places]),
            at=np.array([at for _, at in places]),
            start=np.concatenate([[0], np.cumsum(n_keys)]),
            levels=tuple(np.unique(level, return_inverse=True)[1] for level in cells),
            weights=np.concatenate(
                [
                    weights[text][:, :, at].reshape(-1, n).T
                    for (text, at), n in zip(places, n_keys, strict=True)
                ]
            ),
        )


def _strengths(there: csr_array, weights: Floats, prior: Floats) -> Floats:
    """Return the most probable strength of each cell, (cell, head), given the attention to keys.

    The iteration of Hunter (2004), which increases the posterior in every round, with the gamma
    prior of Caron and Doucet (2012). A mean of the attention in each cell would be biased, because
    questions differ in the number of keys that a head attends to.
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
