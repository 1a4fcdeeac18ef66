"""What `vri clean` does alike for every source: train, compare with plain training, write summary and page."""

import json
import math
import platform
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import vri
from vri.cleaning.options import CleanOptions, SourceOptions
from vri.cleaning.progress import TRAINING, Progress
from vri.cleaning.report import Summary, Suspect, write_report
from vri.cleaning.state import KNOWN, READ_WITH, REPORT, STATE, SUMMARY
from vri.estimator import VRIClassifier
from vri.estimator.checks import OddDataWarning
from vri.estimator.fitting import schedule
from vri.files import atomic_write
from vri.training.progress import portion, report

ENOUGH_TRUSTED = 30  # trusted samples to measure accuracy on; with fewer, all given labels say more
_STEP = 8e-4  # seconds that the small network takes for an image of 32 × 32 in an epoch, on one core
_PARTLY = "against their given labels, which are partly wrong"
_APART = 0.1  # that an estimate of wrong labels and the accuracy on given labels may be apart
_COMPARISON = "comparison.json"

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Samples:
    """Training data: inputs, given labels, which of them are trusted (or None), a network for them, and who judges."""

    X: Any
    given: NDArray[Any]
    trusted: Mask | None
    module: Callable[[int], nn.Module] | None = None
    evidence: str | Sequence[str] = "auto"

    def part(self, chosen: Mask) -> "Samples":
        """Some of the samples."""
        trusted = None if self.trusted is None else self.trusted[chosen]
        return Samples(self.X[chosen], self.given[chosen], trusted, self.module, self.evidence)


@dataclass(frozen=True)
class Accuracy:
    """Shares of labels that were predicted; None if unknown.

    Attributes:
        plain: of plain training on the given labels.
        vri: of the classifier that judges the labels.
        measured_on: which labels they are.
    """

    plain: float | None = None
    vri: float | None = None
    measured_on: str = ""


@dataclass(frozen=True)
class Work:
    """One call of `vri clean`: where its results go, how to get them, and how far it is."""

    out: Path
    options: CleanOptions
    device: torch.device
    progress: Progress
    command: str
    source_options: SourceOptions

    def tell(self, line: str) -> None:
        """Tell the user something."""
        self.progress.tell(line)

    def tell_about(self, samples: int, classes: int, trusted: int, notes: Iterable[str]) -> None:
        """Tell what was read."""
        for note in notes:
            self.tell(f"  {note}")
        self.tell(f"  {samples:,} samples, {classes:,} labels, {trusted:,} trusted")

    def expect_images(self, count: int, size: int) -> None:
        """Say roughly how long training on images will take, before it has begun."""
        epochs, _ = schedule(max(count, 1), self.options.epochs, None, normalised=True)
        trainings = 1 + (self.options.cross_fit or (3 if count <= 1000 else 0))
        trainings += 2 * self.options.compare
        self.progress.expect(training=trainings * epochs * count * _STEP * (size / 32) ** 2)

    def train(
        self, samples: Samples, method: str, folder: str, cross_fit: int = 0, evidence: str | None = None
    ) -> VRIClassifier:
        """A trained classifier; training resumes from the folder of the state."""
        classifier = VRIClassifier(
            samples.module,
            method=method,
            epochs=self.options.epochs,
            cross_fit=cross_fit or None,
            evidence=evidence or samples.evidence,
            random_state=self.options.seed,
            device=str(self.device),
            checkpoint_dir=self.out / STATE / folder,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OddDataWarning)  # of what `vri clean` remarks on
            return classifier.fit(samples.X, samples.given, trusted=samples.trusted)

    def compare(self, samples: Callable[[], Samples]) -> Accuracy:
        """Accuracy of plain training and of vri, both without a fifth of the samples, on this fifth."""
        path = self.out / STATE / _COMPARISON
        if path.exists():
            return Accuracy(**json.loads(path.read_text(encoding="utf-8")))
        everything = samples()
        held = _a_fifth(everything.given, self.options.seed)
        rest, measured = everything.part(~held), everything.part(held)
        del everything  # it may be a quarter of the memory
        with self.progress.part(TRAINING):
            with portion(0, 0.7):
                ours = self.train(rest, "vri", "held-out").predict(measured.X)
            with portion(0.7, 1):
                plain = self.train(rest, "cross-entropy", "plain", evidence="network").predict(measured.X)
        scored, measured_on = _scored(measured, "held out")
        right = measured.given[scored]
        found = Accuracy(float(np.mean(plain[scored] == right)), float(np.mean(ours[scored] == right)), measured_on)
        with atomic_write(path) as file:
            file.write(json.dumps(asdict(found)).encode())
        return found

    def write(
        self,
        suspects: Sequence[Any],
        suspect: Callable[[Any], Suspect],
        accuracy: Accuracy,
        more: Mapping[str, Any],
        **found: Any,
    ) -> Summary:
        """Write the page, and summary.json with `more` in it.

        `suspect` makes what the page shows of each of the suspects; `found` has the other fields of the summary.
        """
        summary = Summary(
            **found,
            accuracy_before=accuracy.plain,
            accuracy_after=accuracy.vri,
            accuracy_on=accuracy.measured_on,
            version=vri.__version__,
            command=self.command,
        )
        packages = ("torch", "numpy", "scikit-learn", "pandas")
        versions = {"vri": vri.__version__, "python": platform.python_version()}
        versions |= {name: metadata.version(name) for name in packages}
        doubt = contradiction(summary)
        summary = replace(summary, remarks=[*([doubt] if doubt else []), *summary.remarks])
        write_report(self.out / REPORT, summary, _counted(map(suspect, suspects), len(suspects)))
        known = {READ_WITH: {name: getattr(self.source_options, name) for name in KNOWN}}
        content = asdict(summary) | {"confidence": self.options.confidence, **more, **known, "versions": versions}
        with atomic_write(self.out / SUMMARY) as file:
            file.write(json.dumps(content, indent=1, ensure_ascii=False).encode())
        return summary


def _counted(suspects: Iterable[Suspect], count: int) -> Iterator[Suspect]:
    """The suspects, with progress."""
    for number, suspect in enumerate(suspects):
        report(number / count)
        yield suspect


def contradiction(summary: Summary) -> str | None:
    """What to say instead of the estimate where it doesn't go with the accuracy on given labels; None if it does."""
    accuracy, (low, high) = summary.accuracy_after, summary.noise_interval
    if accuracy is None or _PARTLY not in summary.accuracy_on:
        return None
    estimate = f"{summary.noise_rate:.1%} of the labels (between {low:.1%} and {high:.1%})"
    if 1 - accuracy > high + _APART:
        return (
            f"unclear how many labels are wrong: {estimate} by estimate, but the classifier differs from "
            f"{1 - accuracy:.1%} of the labels that it has not learned from; it knows too little of this data to judge "
            "by: give it better inputs or more samples, and check some of its issues by hand"
        )
    if accuracy > 1 - low + _APART:
        return (
            f"unclear how many labels are wrong: {estimate} by estimate, but the classifier predicts {accuracy:.1%} of "
            "the labels that it has not learned from; mistakes that follow a rule can be predicted, too: check some of "
            "its issues by hand"
        )
    return None


def own_accuracy(model: VRIClassifier, samples: Samples) -> Accuracy:
    """Accuracy from the training itself: on the folds with cross-fitting, else on held-out samples."""
    if hasattr(model, "fold_"):
        return unseen_accuracy(samples, model.classes_[model.out_of_sample_proba_.argmax(1)] == samples.given)
    history = list(model.history_)
    kept = history[-1].get("kept_epoch")
    if kept is None:  # too few samples to hold any out
        return Accuracy()
    row = next(row for row in history if row["epoch"] == kept)
    return Accuracy(
        None,
        row["validation_accuracy"],
        f"samples held out to choose the epoch, {_PARTLY}",
    )


def unseen_accuracy(samples: Samples, right: Mask) -> Accuracy:
    """Accuracy of cross-fitting, from which of the samples were predicted right."""
    scored, measured_on = _scored(samples, "predicted by classifiers that were not trained on them")
    return Accuracy(None, float(np.mean(right[scored])), measured_on)


def _scored(samples: Samples, how: str) -> tuple[Mask, str]:
    """The samples to measure accuracy on, the trusted ones if there are enough; and what to call them."""
    trusted = np.zeros(len(samples.given), bool) if samples.trusted is None else samples.trusted
    if trusted.sum() >= ENOUGH_TRUSTED:
        return trusted, f"{trusted.sum():,} trusted samples {how}"
    return np.ones(len(trusted), bool), f"{len(trusted):,} samples {how}, {_PARTLY}"


def _a_fifth(given: NDArray[Any], seed: int) -> Mask:
    """A fifth of the samples of each class, at least one; no class has a single sample."""
    generator = np.random.default_rng(seed)
    held = np.zeros(len(given), bool)
    for name in np.unique(given):
        members = generator.permutation(np.flatnonzero(given == name))
        held[members[: math.ceil(len(members) / 5)]] = True
    return held
