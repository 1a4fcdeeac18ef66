"""What helps to judge a suspect: which classes it may belong to, and the samples most like it."""

import io
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import sparse
from sklearn.decomposition import TruncatedSVD

from vri.cleaning.report import Neighbour, Suspect
from vri.cleaning.sources import Source
from vri.cleaning.state import Findings
from vri.estimator import VRIClassifier

NEIGHBOURS = 4  # shown with a suspect
_CLASSES = 3  # that it may belong to
_FURTHER = 100  # samples on the page beyond the issues, at least
_PARTS = 100  # numbers that tell samples apart well enough; distances of more cost time
_BLOCK = 2**24  # distances computed at once
_MOST_PICTURES = 5_000  # of neighbours on the page; beyond it they are named only
_SIDE = 64  # px of such a picture
_LONGEST_TEXT = 240  # characters of a neighbour's

Indices = NDArray[np.int64]


def neighbours(model: VRIClassifier, X: Any, rows: Indices, seed: int, device: torch.device) -> Indices:
    """(n, 4) numbers of the samples most like each of those that a classifier has learned from, nearest first.

    Alike by their columns, or by the features of the network for inputs of another shape. They are looked for only for
    `rows`; the others have -1.
    """
    features = X if X.ndim == 2 else model.features(X)
    near = np.full((features.shape[0], min(NEIGHBOURS, features.shape[0] - 1)), -1)
    near[rows] = nearest(features, rows, near.shape[1], seed, device)
    return near


def nearest(features: Any, rows: Indices, count: int, seed: int, device: torch.device) -> Indices:
    """(r, count) numbers of the samples nearest to each of `rows`, nearest first, without itself.

    Distances are Euclidean between standardised columns, and angles for a sparse matrix. More than 100 columns are
    projected to their 100 principal directions.

    Args:
        features: (n, d) array, where gaps (NaN) count as the mean of their column, or sparse matrix.
        rows: (r,) whose neighbours are looked for.
        count: how many, less than n.
        seed: of the projection.
        device: where distances are computed.
    """
    points = torch.from_numpy(_points(features, seed)).to(device)
    squares = points.square().sum(1)
    found = [torch.zeros((0, count), dtype=torch.int64)]
    for some in torch.from_numpy(np.asarray(rows, np.int64)).split(max(1, _BLOCK // len(points))):
        own = some.to(device)
        distances = squares - 2 * points[own] @ points.T  # but for what is the same in a row
        distances[torch.arange(len(own), device=device), own] = torch.inf
        found.append(distances.topk(count, largest=False).indices.cpu())
    return torch.cat(found).numpy()


def _points(features: Any, seed: int) -> NDArray[np.float32]:
    if sparse.issparse(features):
        points = features.astype(np.float32)
    else:
        points = np.asarray(features, np.float32)
        points = points - np.nanmean(points, axis=0)
        spread = np.sqrt(np.nanmean(np.square(points), axis=0))
        points = np.nan_to_num(points / np.where(spread > 0, spread, 1))
    if points.shape[1] > _PARTS:
        with np.errstate(invalid="ignore"):  # a share of no variance, where all samples are the same
            projection = TruncatedSVD(min(_PARTS, *points.shape), n_iter=3, random_state=seed)
            points = projection.fit_transform(points).astype(np.float32)
    if sparse.issparse(features):
        points = points.toarray() if sparse.issparse(points) else points
        points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    return np.ascontiguousarray(points)


class Candidates:
    """The samples on the page: the issues, and after them about as many of those that come next.

    Attributes:
        numbers: of the samples, most suspicious first.
    """

    def __init__(self, source: Source, found: Findings, order: Indices, most: int) -> None:
        self._source, self._found = source, found
        self._neighbourhood = Neighbourhood(source, found.near)
        further = found.judged & ~found.issue
        if source.trusted is not None:
            further &= ~source.trusted
        named = order[found.issue[order]]
        chosen = np.append(named, order[further[order]][: max(len(named), _FURTHER)])[:most]
        self.numbers: list[int] = [i for i in chosen.tolist() if self._classes(i)]

    def suspect(self, i: int) -> Suspect:
        """What the page shows of a sample."""
        (suggested, confidence), *others = self._classes(i)
        return Suspect(
            id=self._source.ids[i],
            given=self._source.labels[i],
            suggested=suggested,
            quality=float(self._found.quality[i]),
            confidence=confidence,
            outlier=float(self._found.outlier[i]),
            others=others,
            neighbours=self._neighbourhood.of(i),
            **self._source.describe(i),
        )

    def _classes(self, i: int) -> list[tuple[str, float]]:
        """The classes that a sample may belong to instead of the given one, best first, with their probabilities."""
        found = self._found
        known = {found.classes[found.suggested[i]]: float(found.confidence[i])}
        if found.likely is not None and found.likely_probability is not None:
            pairs = zip(found.likely[i].tolist(), found.likely_probability[i].tolist(), strict=True)
            known |= {found.classes[number]: probability for number, probability in pairs if number >= 0}
        known.pop(self._source.labels[i], None)
        return sorted(known.items(), key=lambda pair: -pair[1])[:_CLASSES]


class Neighbourhood:
    """The neighbours of one sample after another, as the page shows them."""

    def __init__(self, source: Source, near: Indices | None) -> None:
        self._source = source
        self._near = near
        self._pictures = 0
        self._describe = lru_cache(maxsize=500)(self._describe_anew)

    def of(self, sample: int) -> tuple[Neighbour, ...]:
        """The neighbours of a sample; none where they were not looked for."""
        return () if self._near is None else tuple(self._named(self._near[sample].tolist()))

    def _named(self, numbers: list[int]) -> Iterator[Neighbour]:
        for number in numbers:
            if number >= 0:
                yield self._describe(number)

    def _describe_anew(self, number: int) -> Neighbour:
        neighbour = Neighbour(self._source.ids[number], self._source.labels[number])
        if self._pictures >= _MOST_PICTURES:
            return neighbour
        shown = self._source.describe(number)
        image, text, fields = shown.get("image"), shown.get("text"), shown.get("fields")
        if image is not None:
            self._pictures += 1
            return replace(neighbour, image=_smaller(image))
        if text is not None:
            return replace(neighbour, text=text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…")
        return replace(neighbour, fields=fields)


def _smaller(picture: bytes) -> bytes:
    image = Image.open(io.BytesIO(picture))
    image.thumbnail((_SIDE, _SIDE))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=70)
    return content.getvalue()
