"""What helps to judge a suspect: further classes, and the samples most like it."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import sparse
from sklearn.neighbors import NearestNeighbors
from torch import nn

from fake_classifier import arguments, installed
from review_pages import jpeg
from vri import VRIClassifier
from vri.cleaning import context, work
from vri.cleaning.context import Neighbourhood, nearest
from vri.cleaning.options import SourceOptions
from vri.cleaning.sources import Source, open_source
from vri.cli import main

CPU = torch.device("cpu")


def literal(points: np.ndarray, rows: np.ndarray, count: int, metric: str) -> np.ndarray:
    found = NearestNeighbors(n_neighbors=count + 1, metric=metric, algorithm="brute").fit(points)
    return found.kneighbors(points[rows], return_distance=False)[:, 1:]  # without itself


@pytest.mark.parametrize("block", [7 * 200, 2**24])
def test_nearest_by_standardised_columns(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_BLOCK", block)
    generator = np.random.default_rng(0)
    points = generator.normal(size=(200, 5)) * [1, 1000, 0.001, 5, 0] + [0, 7, 1, -3, 4]
    rows = generator.permutation(200)[:50]
    scale = np.where(points.std(0) > 0, points.std(0), 1)
    expected = literal((points - points.mean(0)) / scale, rows, 4, "euclidean")
    np.testing.assert_array_equal(nearest(points, rows, 4, 0, CPU), expected)
    assert nearest(points, rows[:0], 4, 0, CPU).shape == (0, 4)


def test_gaps_count_as_the_mean() -> None:
    points = np.array([[0.0, 1], [np.nan, 1.2], [10, 9], [5.2, 1.1]])
    assert nearest(points, np.array([1]), 1, 0, CPU).tolist() == [[3]]


def test_nearest_texts_by_angle() -> None:
    generator = np.random.default_rng(0)
    texts = generator.poisson(0.3, (150, 40)) * generator.integers(1, 20, (150, 1)) + np.eye(150, 40)
    rows = np.arange(0, 150, 3)
    expected = literal(texts, rows, 3, "cosine")
    found = nearest(sparse.csr_matrix(texts), rows, 3, 0, CPU)
    assert np.mean(found == expected) > 0.97  # but for ties
    # wide ones are projected: three groups of words, and nothing else to tell texts apart
    group = generator.integers(0, 3, 90)
    wide = np.zeros((90, 600))
    wide[np.arange(90)[:, None], 200 * group[:, None] + generator.integers(0, 200, (90, 60))] = 1
    found = nearest(sparse.csr_matrix(wide), np.arange(90), 4, 0, CPU)
    np.testing.assert_array_equal(group[found], np.repeat(group[:, None], 4, axis=1))


def source_of(describe: Any) -> Source:
    labels = ["a", "b", "c", "d"]
    return Source("s", [f"id{i}" for i in range(4)], labels, None, lambda *_: None, describe, "")


def test_neighbours_show_little_and_few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def describe(i: int) -> dict[str, Any]:
        asked.append(i)
        return {"image": jpeg(160, i)}

    monkeypatch.setattr(context, "_MOST_PICTURES", 2)
    near = np.array([[1, 2], [2, 1], [3, -1], [-1, -1]])
    neighbourhood = Neighbourhood(source_of(describe), near)
    first, again, later = (neighbourhood.of(i) for i in range(3))
    assert [(n.id, n.label) for n in first] == [("id1", "b"), ("id2", "c")]
    assert again == first[::-1]
    assert asked == [1, 2]
    assert Image.open(io.BytesIO(first[0].image or b"")).size == (64, 64)
    assert [(n.id, n.image) for n in later] == [("id3", None)]
    assert neighbourhood.of(3) == Neighbourhood(source_of(describe), None).of(0) == ()
    long = Neighbourhood(source_of(lambda i: {"text": "x" * 999, "fields": {"y": "1"}}), near).of(2)[0]
    assert (len(long.text or ""), long.fields) == (241, None)
    assert Neighbourhood(source_of(lambda i: {"fields": {"y": "1"}}), near).of(2)[0].fields == {"y": "1"}


def test_page_gets_further_samples_and_their_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    seen: list[Any] = []
    monkeypatch.setattr(work, "write_report", lambda path, summary, suspects: seen.extend([summary, *suspects]))
    assert main(arguments(tmp_path, "--trusted", "ok", "--quiet")) == 0
    summary, *suspects = seen
    # issues first, then the others that are not trusted, as k0 and k9 are
    assert summary.issues == 2
    assert [s.id for s in suspects] == ["k1", "k4", "k2", "k3", "k5", "k6", "k7", "k8", "k10", "k11"]
    # k1 is a b labelled c, with =a in second place; k3 is an =a and labelled so, and b comes first of the others
    assert (suspects[0].given, suspects[0].suggested, suspects[0].others) == ("c", "b", [("=a", 0.03)])
    assert (suspects[3].given, suspects[3].suggested, suspects[3].others) == ("=a", "b", [("c", 0.03)])
    assert {n.id: n.label for n in suspects[0].neighbours[:3]} == {"k4": "c", "k7": "b", "k10": "b"}
    assert suspects[0].neighbours[0].fields["x"] == "1.1"
    seen.clear()
    assert main(arguments(tmp_path, "--trusted", "ok", "--quiet", "--max-suspects", "3")) == 0
    assert [s.id for s in seen[1:]] == ["k1", "k4", "k2"]
    assert len(seen[1].neighbours) == 4  # as the first time, though nothing was trained


def test_whole_numbers_are_shown_as_such(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("age,price,size,y\n65.0,2.0,10,a\n,2.5,20,b\n7.0,3.0,30,a\n8.0,1.0,40,b\n", encoding="utf-8")
    source = open_source(path, SourceOptions(label="y"))
    assert [list(source.describe(i)["fields"].values()) for i in range(3)] == [
        ["65", "2.0", "10"],
        ["", "2.5", "20"],
        ["7", "3.0", "30"],
    ]


def test_features_are_what_the_last_layer_reads() -> None:
    x = np.random.default_rng(0).normal(size=(40, 1, 2, 2)).astype(np.float32)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    model = VRIClassifier(layers, method="cross-entropy", epochs=1, cross_fit=0, random_state=0).fit(
        x, np.arange(40) % 2
    )
    with torch.no_grad():
        expected = model.module_[:3](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(model.features(x), expected, rtol=1e-5, atol=1e-6)
    flat = x.reshape(40, 4)
    with pytest.raises(ValueError, match="no network has a part in this classifier"):
        VRIClassifier(evidence="linear", random_state=0).fit(flat, flat[:, 0] > 0).features(flat)
