"""Digits in .npy files, for the tests of `vri clean` on them."""

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits


def digits(folder: Path, dtype: Any = np.float16) -> tuple[np.ndarray, np.ndarray]:
    """X.npy and y.npy, a fifth of the labels that of the next class; returns the labels and the right ones."""
    data = load_digits()
    given = data.target.copy()
    wrong = np.random.default_rng(0).random(len(given)) < 0.2
    given[wrong] = (given[wrong] + 1) % 10
    np.save(folder / "X.npy", data.data.astype(dtype))
    np.save(folder / "y.npy", given)
    return given, data.target


def call(folder: Path, *more: str, out: str = "out") -> list[str]:
    labels = ["--labels", str(folder / "y.npy")]
    return ["clean", str(folder / "X.npy"), *labels, "--out", str(folder / out), *more, "--quiet"]
