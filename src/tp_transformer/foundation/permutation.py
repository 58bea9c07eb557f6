"""A pseudo-random order of any number of things that is computed, not stored.

`permute(i, n, key)` is a bijection of 0 … n - 1 for each key: a Feistel network over a rectangle
that just holds n places, walked on where it ends outside (Black and Rogaway, 2002). Shuffling
112 million rows so takes no memory and no time beforehand, and the row at any place of the order
can be asked for at once.
"""

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

ROUNDS = 6  # 4 make a Feistel network look random; 6 leave a margin at tiny sizes


def permute(index: npt.ArrayLike, n: npt.ArrayLike, key: npt.ArrayLike) -> Integers:
    """Where each index goes among the `n` things of its kind, in the order that `key` names.

    The three broadcast: every index may have a size and a key of its own.
    """
    found, sizes, keys = (
        np.array(words) for words in np.broadcast_arrays(_words(index), _words(n), _words(key))
    )
    if (found >= sizes).any():
        raise ValueError("an index must be below the number of things")
    height = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    width = -(-sizes.astype(np.int64) // height.astype(np.int64)).astype(np.uint64)
    walking: slice | Integers = slice(None)
    while True:
        found[walking] = _feistel(found[walking], height[walking], width[walking], keys[walking])
        walking = outside = np.flatnonzero(found >= sizes)  # about one in sqrt(n)
        if not len(outside):
            return found.astype(np.int64)


def key_of(*numbers: npt.ArrayLike) -> Words:
    """A key that depends on every one of the numbers and on their order; arrays broadcast."""
    key = _words(0)
    for number in numbers:
        key = _mix(key ^ _words(number))
    return key


def _words(numbers: npt.ArrayLike) -> Words:
    return np.atleast_1d(np.asarray(numbers)).astype(np.uint64)


def _feistel(words: Words, height: Words, width: Words, keys: Words) -> Words:
    """Shift each row of the rectangle by what its column says, then columns by rows, in turn."""
    row, column = words // width, words % width
    for number in range(0, ROUNDS, 2):
        row = (row + (_mix(column ^ _mix(keys + np.uint64(number))) >> np.uint64(8))) % height
        column = (column + (_mix(row ^ _mix(keys + np.uint64(number + 1))) >> np.uint64(8))) % width
    return row * width + column


def _mix(words: Words) -> Words:
    """Scatter the bits of 64-bit words (the finaliser of SplitMix64: Steele et al., 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
