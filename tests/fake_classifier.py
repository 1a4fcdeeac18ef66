"""A classifier of known beliefs and a small table, for the tests of `vri clean`."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from vri.cleaning import work

FOLDS = "predicted by classifiers that were not trained on them"
PARTLY = "against their given labels, which are partly wrong"
FILES = ["classifier.safetensors", "corrected.csv", "label_issues.csv", "report.html", "state", "summary.json"]


class FakeClassifier:
    """Believes that the first feature, rounded, is the place of the true class; keeps what it was asked."""

    asked: list[dict[str, Any]] = []  # noqa: RUF012
    fitted: list[tuple[np.ndarray, np.ndarray, Any]] = []  # noqa: RUF012

    def __init__(self, module: Any = None, **settings: Any) -> None:
        FakeClassifier.asked.append(settings | {"module": module})
        if settings["cross_fit"]:
            self.fold_ = np.zeros(0)

    def fit(self, X: Any, y: Any, trusted: Any = None) -> "FakeClassifier":
        FakeClassifier.fitted.append((X, y, trusted))
        self.classes_ = np.unique(y)
        self.given, self.true = y, self._places(X)
        right = self.classes_[self.true] == y
        noise = np.linspace(0, 0.05, len(y))
        self.label_quality_ = np.where(right, 0.9, 0.1) + noise
        self.trusted = np.zeros(len(y), bool) if trusted is None else trusted
        self.label_quality_[self.trusted] = 1.0
        self.confidence = np.where(right, 0.05, np.where(np.arange(len(y)) % 2, 0.95, 0.85))
        self.out_of_sample_proba_ = np.eye(len(self.classes_))[self.true]
        self.transition_matrix_ = np.arange(len(self.classes_) ** 2).reshape(len(self.classes_), -1) / 100
        self.noise_rate_, self.noise_rate_interval_, self.threshold_ = 0.25, (0.2, 0.3), 0.5
        self.history_ = [{"epoch": 1, "validation_accuracy": 0.75}, {"epoch": 2, "kept_epoch": 1}]
        return self

    def _places(self, X: Any) -> np.ndarray:
        return np.asarray(X)[:, 0].round().astype(int)

    def features(self, X: Any) -> np.ndarray:
        return np.asarray(X).reshape(len(X), -1)

    def predict(self, X: Any) -> np.ndarray:
        return np.full(len(X), self.classes_[0])  # the plain one knows nothing

    def find_label_issues(self) -> pd.DataFrame:
        other = (np.searchsorted(self.classes_, self.given) + 1) % len(self.classes_)
        wrong = self.classes_[self.true] != self.given
        return pd.DataFrame(
            {
                "given_label": self.given,
                "predicted_label": self.classes_[np.where(wrong, self.true, other)],
                "label_quality": self.label_quality_,
                "is_label_issue": self.label_quality_ < 0.5,
                "predicted_probability": self.confidence,
                "second_label": self.classes_[(self.true + 2) % len(self.classes_)],
                "second_probability": 0.03,
                "third_label": None,
                "third_probability": np.nan,
                "outlier_score": np.linspace(0, 1, len(self.given)),
            }
        )

    def save(self, path: Path) -> None:
        path.write_bytes(b"weights")


def installed(monkeypatch: pytest.MonkeyPatch) -> type[FakeClassifier]:
    """The fake in the place of the real one, with nothing asked yet."""
    FakeClassifier.asked, FakeClassifier.fitted = [], []
    monkeypatch.setattr(work, "VRIClassifier", FakeClassifier)
    return FakeClassifier


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(folder: Path) -> Path:
    """12 rows; the true classes are =a, b, c by turns, and rows 1, 4 and 9 are labelled as the next one."""
    rows = []
    for n in range(12):
        true = n % 3
        given = (true + 1) % 3 if n in (1, 4, 9) else true
        rows.append(f"k{n},{true}.1,{'yes' if n in (0, 9) else 'no'},{('=a', 'b', 'c')[given]}")
    path = folder / "t.csv"
    path.write_text("key,x,ok,y\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def arguments(folder: Path, *more: str) -> list[str]:
    call = ["clean", str(table(folder)), "--label", "y", "--id", "key", "--features", "x", "--cross-fit", "5"]
    return [*call, "--out", str(folder / "out"), *more]


def fake_quality() -> np.ndarray:
    return np.where(np.isin(np.arange(12), (1, 4, 9)), 0.1, 0.9) + np.linspace(0, 0.05, 12)
