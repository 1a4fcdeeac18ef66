"""`VRIClassifier` with token ids, several inputs, and data sets."""

from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from vri import VRIClassifier
from vri.estimator import samples

WORDS, LENGTH = 20, 6
QUICK = {"method": "cross-entropy", "epochs": 5, "batch_size": 40, "lr": 0.5, "random_state": 0, "cross_fit": 0}


class Tokens(nn.Module):
    """A mean of embeddings, with a mask; called with one tensor, two, or keywords."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        words = self.embedding(input_ids)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mean = (words * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return SimpleNamespace(logits=self.head(mean))


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids, mask and labels, every eighth of them wrong: words below 10 belong to class 0."""
    random = np.random.default_rng(0)
    true = np.arange(160) % 2
    ids = random.integers(0, 10, (160, LENGTH)) + 10 * true[:, None]
    return ids, np.ones_like(ids), np.where(np.arange(160) % 8 == 0, 1 - true, true)


class Pairs(Dataset[Any]):
    """(inputs, label), one sample at a time."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.ids, self.mask, self.y = data()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> Any:
        ids, mask = torch.from_numpy(self.ids[i]), torch.from_numpy(self.mask[i])
        return {
            "pair": (ids, int(self.y[i])),
            "nested": ((ids, mask), "ab"[self.y[i]]),
            "lists": {"input_ids": ids.tolist(), "attention_mask": mask.tolist(), "labels": int(self.y[i])},
            "inputs": (ids, mask),
            "array": self.ids[i],
        }[self.form]


def tensors(*arrays: np.ndarray) -> list[Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def forms() -> dict[str, Any]:
    ids, mask, y = data()
    return {
        "array": (ids, y),
        "32 bits": (ids.astype(np.int32), y),
        "list": (ids.tolist(), y),
        "tensor": (torch.from_numpy(ids), torch.from_numpy(y)),
        "dict": ({"input_ids": ids, "attention_mask": mask}, y),
        "batch": (UserDict(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)), y),
        "batch with labels": ({"input_ids": ids, "labels": y}, None),
        "tuple": ((ids, torch.from_numpy(mask)), y),
        "tensor data set": (TensorDataset(*tensors(ids, y)), None),
        "three tensors": (TensorDataset(*tensors(ids, mask)), y),
        "data set of pairs": (Pairs("pair"), None),
        "data set of pairs, other labels": (Pairs("pair"), y),
        "data set with strings": (Pairs("nested"), None),
        "data set of mappings": (Pairs("lists"), None),
        "data set of inputs": (Pairs("inputs"), y),
        "data set of arrays": (Pairs("array"), y),
    }


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    ids, _, y = data()
    return VRIClassifier(Tokens, **QUICK).fit(ids, y).predict_proba(ids)


@pytest.mark.parametrize("form", forms())
def test_every_form_of_the_same_inputs_learns_the_same(form: str, expected: np.ndarray) -> None:
    X, y = forms()[form]
    clf = VRIClassifier(Tokens, **QUICK).fit(X, y)
    np.testing.assert_allclose(clf.predict_proba(X), expected, atol=1e-4)
    wrong = np.arange(160) % 8 == 0
    assert clf.label_quality_[wrong].mean() < clf.label_quality_[~wrong].mean() - 0.3


def test_folds_trusted_and_unlabelled_samples_of_a_data_set(tmp_path: Path) -> None:
    ids, mask, y = data()
    labels = np.where(np.arange(160) < 4, np.nan, y)
    clf = VRIClassifier(Tokens, **QUICK | {"method": "vri", "cross_fit": 2, "unlabelled": "predict"})
    clf.fit(Pairs("inputs"), labels, trusted=np.isin(np.arange(160) % 8, [5, 6]))
    frame = clf.find_label_issues()
    assert frame["predicted_label"].tolist()[:4] == [0, 1, 0, 1]
    assert (clf.label_quality_ == 1)[5::8].all()
    assert clf.label_quality_[8::8].mean() < clf.label_quality_[9::8].mean() - 0.3
    assert clf.out_of_sample_proba_.shape == (160, 2)
    clf.save(tmp_path / "c.safetensors")
    again = VRIClassifier.load(tmp_path / "c.safetensors", Tokens)
    np.testing.assert_allclose(again.predict_proba((ids, mask)), clf.predict_proba(Pairs("inputs")), atol=1e-6)


def test_integers_become_floats_for_a_module_that_wants_floats(tmp_path: Path) -> None:
    ids, _, y = data()
    clf = VRIClassifier(nn.Sequential(nn.Linear(LENGTH, 8), nn.ReLU(), nn.Linear(8, 2)), **QUICK).fit(ids, y)
    assert clf.predict_proba(ids).shape == (160, 2)
    tokens = VRIClassifier(Tokens, **QUICK).fit(ids, y)
    with pytest.raises(ValueError, match=r"X has floats; expected integers, as in fit \(token ids\)"):
        tokens.predict(ids.astype(float))
    tokens.save(tmp_path / "t.safetensors")
    again = VRIClassifier.load(tmp_path / "t.safetensors", Tokens)
    np.testing.assert_allclose(again.predict_proba(ids), tokens.predict_proba(ids))


class Stream(torch.utils.data.IterableDataset[Any]):
    """Has no length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ({"a": np.zeros((4, 2)), "b": np.zeros((3, 2))}, r"different numbers of samples \(X\['a'\] has 4, X\['b'\]"),
        ({"a": np.full((4, 2), np.nan)}, r"X\['a'\] contains NaN or infinity"),
        ({"a": [[1], [1, 2], [3], [4]]}, r"X\['a'\] can't be made a tensor; .*pad token ids"),
        ({"labels": [0, 1, 0, 1]}, "X has no inputs"),
        (Stream(), "an iterable one can't be shuffled"),
    ],
)
def test_what_cannot_work_says_why(X: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        VRIClassifier(Tokens).fit(X, [0, 1, 0, 1])


def test_a_pair_of_inputs_is_not_an_input_with_its_label() -> None:
    ids, mask = torch.arange(3), torch.ones(3)
    assert samples.split((ids, mask))[1] is None
    assert samples.split((ids, torch.tensor(2))) == (ids, 2)
    assert samples.split([ids, "cat"]) == (ids, "cat")
    assert samples.split({"input_ids": ids, "label": 1}) == ({"input_ids": ids}, 1)
