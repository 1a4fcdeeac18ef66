"""Encoders for tests: what `--encoder module:tiny_encoders.NAME` finds."""

from typing import Any

import numpy as np

calls: list[int] = []  # how many samples each call got


def colours(images: list[Any]) -> Any:
    """Mean and spread of each channel."""
    calls.append(len(images))
    pixels = [np.asarray(image, float).reshape(-1, 3) / 255 for image in images]
    return np.stack([np.concatenate([each.mean(0), each.std(0)]) for each in pixels])


def letters(texts: list[str]) -> Any:
    """How often each letter of the alphabet comes."""
    calls.append(len(texts))
    return np.array([[text.lower().count(chr(97 + k)) for k in range(26)] for text in texts])


def flat(samples: list[Any]) -> Any:
    """One number too few."""
    return np.zeros(len(samples))


def growing(samples: list[Any]) -> Any:
    """A width that depends on the batch."""
    return np.zeros((len(samples), len(samples)))


def broken(samples: list[Any]) -> Any:
    """NaN for the third sample."""
    found = np.ones((len(samples), 2))
    found[2] = np.nan
    return found


def words(samples: list[Any]) -> Any:
    """Not numbers."""
    return np.array([["a"] for _ in samples])


number = 3
