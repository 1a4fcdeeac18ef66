"""What was learned from a sample of a stream, and what it says about any other rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from vri import quality
from vri.cleaning.npy import Floats, Indices, as_floats
from vri.cleaning.parts import Part
from vri.cleaning.stream_source import Mask, Stream, blocks
from vri.estimator import VRIClassifier


@dataclass(frozen=True, eq=False)
class Learned:
    """What a sample told about the labels of all; see `quality.Calibration` for the arrays."""

    transitions: NDArray[np.float64]
    lifts: NDArray[np.float64]
    scores: NDArray[np.float64]
    qualities: NDArray[np.float64]
    threshold: float
    noise_interval: tuple[float, float]
    accuracy_before: float
    accuracy_after: float
    accuracy_on: str
    learned_from: int
    calibrated_on: int
    seconds: float

    def calibration(self) -> quality.Calibration:
        """To judge labels by."""
        arrays = (self.transitions, self.lifts, self.scores, self.qualities)
        return quality.Calibration(*map(torch.from_numpy, arrays))


class Probabilities:
    """A saved classifier, whose classes are put in the order of the stream's.

    Attributes:
        compact: number among the judged classes of each class by place; -1 for one that is not judged.
        row_bytes: that a row takes on its way through.
    """

    def __init__(self, stream: Stream, classifier: VRIClassifier) -> None:
        self._classifier = classifier
        known = {str(name): number for number, name in enumerate(classifier.classes_)}
        self._columns = [known[stream.classes[place]] for place in stream.judged]
        self.compact = np.full(len(stream.classes), -1)
        self.compact[stream.judged] = np.arange(len(stream.judged))
        self.row_bytes = max(4 * stream.embeddings.shape[1], 8 * len(stream.classes), 4 * max(classifier.hidden))

    @classmethod
    def load(cls, stream: Stream, file: Path, device: torch.device) -> Self:
        """From the file, even right after training: a run that goes on has nothing else."""
        classifier = VRIClassifier.load(file)
        classifier.module_.to(device)
        return cls(stream, classifier)

    def __call__(self, X: Floats) -> torch.Tensor:
        """(n, c) probabilities of the judged classes."""
        return torch.from_numpy(self._classifier.predict_proba(X)[:, self._columns])


class Judge:
    """Says what it thinks of the labels of any rows."""

    def __init__(
        self,
        stream: Stream,
        learned: Learned,
        probabilities: Probabilities,
        confidence: float,
    ) -> None:
        self._stream, self._probabilities, self._confidence = stream, probabilities, confidence
        self._names = stream.names
        self._calibration, self._threshold = learned.calibration(), learned.threshold

    @classmethod
    def load(cls, stream: Stream, learned: Learned, file: Path, device: torch.device, confidence: float) -> Self:
        """With the classifier in a file."""
        return cls(stream, learned, Probabilities.load(stream, file, device), confidence)

    def rows(self, start: int, stop: int) -> Part:
        """The verdict on the rows from `start` to before `stop`; they are all read and checked first."""
        stream, n = self._stream, stop - start
        numbers = np.arange(start, stop)
        embeddings = stream.embeddings.read(start, stop)
        given, marks = stream.given(start, stop), stream.marks(start, stop)
        judged = self._probabilities.compact[given] >= 0
        found = Part(
            row=numbers,
            id=numbers if stream.ids is None else stream.ids.read(start, stop),
            given=given,
            suggested=np.full(n, -1),
            quality=np.full(n, np.nan),
            issue=np.zeros(n, bool),
            confidence=np.full(n, np.nan),
            outlier=np.full(n, np.nan),
            changed=np.zeros(n, bool),
            names=self._names,
        )
        for block in blocks(n, self._probabilities.row_bytes):
            X = as_floats(stream.embeddings.path, embeddings[block], numbers[block])
            here = np.flatnonzero(judged[block])
            if len(here):
                self._judge(found, X[here], here + block.start, marks)
        return found

    def _judge(self, found: Part, X: Floats, rows: Indices, marks: Mask) -> None:
        """Fill in what is thought of some rows; trusted labels are right."""
        labels = torch.from_numpy(self._probabilities.compact[found.given[rows]])
        trusted = torch.from_numpy(marks[rows])
        probabilities = self._probabilities(X)
        right, beliefs = self._calibration.judge(probabilities, labels)
        right[trusted] = 1.0
        beliefs[trusted] = torch.nn.functional.one_hot(labels[trusted], beliefs.shape[1]).double()
        issues = (right < self._threshold) & ~trusted
        # for an issue, the best class but the given one, which may still be ahead of each of the others
        suggested = torch.where(issues, beliefs.scatter(1, labels[:, None], -1.0).argmax(1), beliefs.argmax(1))
        confidence = beliefs.gather(1, suggested[:, None]).squeeze(1)
        found.suggested[rows] = self._stream.judged[suggested.numpy()]
        found.quality[rows] = right.numpy()
        found.issue[rows] = issues.numpy()
        found.confidence[rows] = confidence.numpy()
        found.outlier[rows] = quality.outlier_score(probabilities).numpy()
        found.changed[rows] = (issues & (confidence >= self._confidence)).numpy()
