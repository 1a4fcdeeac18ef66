"""A random order of 0..n-1 that is computed number by number: no list of n numbers is ever in memory."""

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8  # four are enough in theory if the halves are large; those of a small n are not
_LEAST_HALF = 3  # bits: with fewer, some orders never come


def shuffled(numbers: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Where each number goes in the order with this seed: a bijection of 0..size-1.

    A Feistel network with equal halves is a bijection of as many numbers as a power of 4, of which the smallest that is
    enough is taken. A number that it takes out of the range is sent through it again until it is back: that leaves a
    bijection of the range.

    Args:
        numbers: from 0 to size - 1, of any shape.
        size: how many numbers there are.
        seed: of the order.
    """
    if len(numbers.ravel()) and not (numbers.min() >= 0 and numbers.max() < size):
        raise ValueError(f"numbers go from {numbers.min()} to {numbers.max()}; expected 0 to {size - 1}, of {size}")
    half = max(_LEAST_HALF, -(-(size - 1).bit_length() // 2))
    keys = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64).astype(np.uint64)
    found = _feistel(numbers.astype(np.uint64).ravel(), half, keys)
    while len(outside := np.flatnonzero(found >= size)):
        found[outside] = _feistel(found[outside], half, keys)
    return found.astype(np.int64).reshape(numbers.shape)


def _feistel(numbers: NDArray[np.uint64], half: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Swap the halves of `half` bits again and again, mixing into one what the other hashes to."""
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = numbers >> shift, numbers & mask
    for key in keys:
        left, right = right, left ^ (_hash(right ^ key) & mask)
    return left << shift | right


def _hash(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014), modulo 2^64 as all of numpy's unsigned arithmetic."""
    numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ numbers >> np.uint64(31)
