"""Pseudo-random permutations of any size that are computed, not stored.

`permute(i, n, key)` is a bijection of 0 … n - 1 for each key: a Feistel network over the smallest
rectangle with n cells, with cycle walking (Black and Rogaway, 2002). It shuffles 112 million rows
without memory or preparation, and computes the row at any index directly.
"""

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

ROUNDS = 6  # 4 are pseudo-random; 6 leave a margin for small n


def permute(index: npt.ArrayLike, n: npt.ArrayLike, key: npt.ArrayLike) -> Integers:
    """Return the image of each index under the permutation of 0 … n - 1 that `key` selects.

    The arguments broadcast, so each index may have its own size and key.
    """
    found, sizes, keys = (
        np.array(words) for words in np.broadcast_arrays(_words(index), _words(n), _words(key))
    )
    if (found >= sizes).any():
        raise ValueError("each index must be below n")
    height = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    width = -(-sizes.astype(np.int64) // height.astype(np.int64)).astype(np.uint64)
    walking: slice | Integers = slice(None)
    while True:
        found[walking] = _feistel(found[walking], height[walking], width[walking], keys[walking])
        walking = outside = np.flatnonzero(found >= sizes)  # about one in sqrt(n)
        if not len(outside):
            return found.astype(np.int64)


def key_of(*numbers: npt.ArrayLike) -> Words:
    """Return a key that depends on all numbers and on their order; arrays broadcast."""
    key = _words(0)
    for number in numbers:
        key = _mix(key ^ _words(number))
    return key


def _words(numbers: npt.ArrayLike) -> Words:
    return np.atleast_1d(np.asarray(numbers)).astype(np.uint64)


def _feistel(words: Words, height: Words, width: Words, keys: Words) -> Words:
    """Shift rows by a hash of the column and columns by a hash of the row, alternately."""
    row, column = words // width, words % width
    for number in range(0, ROUNDS, 2):
        row = (row + (_mix(column ^ _mix(keys + np.uint64(number))) >> np.uint64(8))) % height
        column = (column + (_mix(row ^ _mix(keys + np.uint64(number + 1))) >> np.uint64(8))) % width
    return row * width + column


def _mix(words: Words) -> Words:
    """Hash 64-bit words (the finaliser of SplitMix64: Steele et al., 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
