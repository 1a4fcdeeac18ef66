"""`vri clean` on an .npy file that does not fit in memory: learn from a sample of its rows, judge all in parts."""

import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from vri import quality
from vri.cleaning.arrow import parquet_library
from vri.cleaning.cards import with_cards
from vri.cleaning.npy import Indices, NpySource, chunks
from vri.cleaning.progress import JUDGING, PAGE, READING, TRAINING
from vri.cleaning.remarks import spelling, without_label
from vri.cleaning.report import QUALITY_BINS, Summary, Suspect
from vri.cleaning.sources import file_hash, first_numbers
from vri.cleaning.state import CLASSIFIER, CORRECTED, ISSUES, STATE, begin, load_found, save_found
from vri.cleaning.work import Accuracy, Samples, Work, own_accuracy, unseen_accuracy
from vri.core.randomness import derive_seed
from vri.estimator import VRIClassifier
from vri.files import atomic_write
from vri.training.progress import portion, report

_COPIES = 8  # of the rows and their probabilities that training takes, about
_MOST_ROWS, _TRAINING = 200_000, 1.4e9  # rows, and bytes that training on them may take, if not all fit in memory
_PART = 2**25  # bytes per array of the rows of a part
_BLOCK = 10_000  # rows whose probabilities are computed together
_LEARNED = "learned.npz"
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: its multiples are spread evenly
_CALIBRATION = [field.name for field in fields(quality.Calibration)]

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Folds:
    """Which of several classifiers judges a row: one that has not learned from it.

    Attributes:
        rows: of the sample, ascending.
        held: the classifier that was trained without each of them.
        count: how many classifiers there are.
    """

    rows: Indices
    held: Indices
    count: int

    @classmethod
    def deal(cls, rows: Indices, given: NDArray[Any], count: int, seed: int) -> Self:
        """Deal out the rows of each class in turn, so that two of a class are never held out together."""
        order = np.lexsort((np.random.default_rng(seed).random(len(rows)), given))
        held = np.empty(len(rows), np.int64)
        held[order] = np.arange(len(rows)) % count
        return cls(rows, held, count)

    def of(self, rows: Indices) -> Indices:
        """The classifier that judges each of these rows; outside of the sample it may be any, and each gets a share."""
        place = np.searchsorted(self.rows, rows).clip(max=len(self.rows) - 1)
        spread = (rows.astype(np.uint64) * np.uint64(_GOLDEN) >> np.uint64(32)) % np.uint64(self.count)
        return np.where(self.rows[place] == rows, self.held[place], spread.astype(np.int64))


@dataclass(frozen=True, eq=False)
class Learned:
    """What the samples say about the labels of all rows; the first four make a `quality.Calibration`.

    `rows` and `held` make the `Folds` if there are any.
    """

    transitions: Numbers
    lifts: Numbers
    scores: Numbers
    qualities: Numbers
    threshold: float
    noise_interval: tuple[float, float]
    accuracy: float | None
    measured_on: str
    learned_from: int
    calibrated_on: int
    seconds: float
    rows: Indices | None = None
    held: Indices | None = None

    def calibration(self) -> quality.Calibration:
        """The calibration to judge labels by."""
        return quality.Calibration(*(torch.from_numpy(getattr(self, name)) for name in _CALIBRATION))

    def folds(self, count: int) -> Folds | None:
        """Who judges which row; None if one classifier judges all."""
        return None if self.rows is None or self.held is None else Folds(self.rows, self.held, count)


def sample_size(source: NpySource) -> int:
    """How many rows to learn from: all if training on them takes half of the memory at most, else some."""
    rows, width = source.embeddings.shape
    each = _COPIES * (4 * width + 8 * len(source.classes))
    return rows if rows * each <= _memory() / 2 else int(min(_MOST_ROWS, _TRAINING // each, rows))


def _memory() -> int:
    """Bytes of the machine, or of the container."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, ValueError):  # "max" where there is no limit
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limits)


def clean_stream(work: Work, source: NpySource, sample: int, fresh: bool) -> Summary:
    """Find the wrong labels; the same call resumes at the epoch, or the part of the results, where it was stopped."""
    parquet_library(work.out)  # before hours of work, not after
    work.tell_about(source.rows, len(source.classes), source.trusted_count, source.notes)
    width, classes = source.embeddings.shape[1], len(source.classes)
    size = max(1, _PART // max(4 * width, 16 * classes, 1024))
    settings = _settings(work, source, sample, size)
    again = begin(work.out, settings, fresh)
    learned = load_found(work.out / STATE / _LEARNED, Learned) if (work.out / CLASSIFIER).exists() else None
    if learned is None:
        if again:
            work.tell(f"resuming the run in {work.out}")
        learned = _learn(work, source, sample)
        save_found(work.out / STATE / _LEARNED, learned)
    accuracy = Accuracy(None, learned.accuracy, learned.measured_on)
    if work.options.compare:
        accuracy = work.compare(lambda: _take(source, _draw(source, sample, work.options.seed)))
    parts = [range(start, min(start + size, source.rows)) for start in range(0, source.rows, size)]
    _judge(work, source, learned, parts)
    with work.progress.part(PAGE):
        return _write(work, source, learned, accuracy, parts, settings)


def _settings(work: Work, source: NpySource, sample: int, size: int) -> dict[str, Any]:
    """All that the results depend on. Embeddings are identified by size and date: reading them takes too long."""
    written = datetime.fromtimestamp(source.embeddings.path.stat().st_mtime, UTC).isoformat()
    columns = {"label": source.labels, "trusted": source.trusted, "id": source.ids}
    return {
        "embeddings": f"{source.embeddings.shape} {source.embeddings.dtype}, written {written}",
        **{f"content of --{name}": None if file is None else file_hash(file.path) for name, file in columns.items()},
        "sample": sample,
        "rows per part": size,
        **({"unlabelled": source.options.unlabelled} if source.options.unlabelled else {}),
        **({"cross_fit": work.options.cross_fit} if work.options.cross_fit else {}),
        **{name: getattr(work.options, name) for name in ("confidence", "epochs", "seed")},
    }


# learning


def _learn(work: Work, source: NpySource, sample: int) -> Learned:
    start, seed = time.perf_counter(), work.options.seed
    rows = _draw(source, sample, seed)
    work.tell(f"  learning from {len(rows):,} of {source.rows:,} rows")
    with work.progress.part(READING):
        samples = _take(source, rows)
    count = work.options.cross_fit
    folds = Folds.deal(rows, samples.given, count, derive_seed(seed, 2)) if count else None
    with work.progress.part(TRAINING):
        with portion(0, 1 / (count + 1)):
            model = work.train(samples, "vri", "vri", evidence="network")  # which judges rows as they stream by
        model.save(work.out / CLASSIFIER)
        accuracy = own_accuracy(model, samples)
        labels_only = replace(samples, X=None)
        del samples, model
        if folds is not None:
            _train_folds(work, source, folds)
    if folds is not None:
        said, labels = Judge(work, source, folds).probabilities(rows)
        accuracy = unseen_accuracy(labels_only, (said.argmax(1) == labels).numpy())
    # A second sample: the classifier knows the rows it was trained on better, and they are as rare here as among all
    # rows. Trusted labels are not representative of those to be judged.
    others = _draw(source, sample, seed, calibrate=True)
    probabilities, labels = Judge(work, source, folds).probabilities(others)
    verdict = quality.judge(probabilities, labels)
    calibration = quality.Calibration.learn(probabilities, labels, verdict)
    return Learned(
        **{name: getattr(calibration, name).numpy() for name in _CALIBRATION},
        threshold=quality.threshold(verdict.label_quality, VRIClassifier().precision),
        noise_interval=verdict.noise_interval,
        accuracy=accuracy.vri,
        measured_on=accuracy.measured_on,
        learned_from=len(rows),
        calibrated_on=len(others),
        seconds=time.perf_counter() - start,
        rows=None if folds is None else folds.rows,
        held=None if folds is None else folds.held,
    )


def _train_folds(work: Work, source: NpySource, folds: Folds) -> None:
    """One classifier after another, each without a part of the sample; those in the state are not trained again."""
    for number in range(folds.count):
        path = _fold(work, number)
        if path.exists():
            continue
        with portion((number + 1) / (folds.count + 1), (number + 2) / (folds.count + 1)):
            rest = _take(source, folds.rows[folds.held != number])
            work.train(rest, "vri", f"fold-{number}", evidence="network").save(path)


def _fold(work: Work, number: int) -> Path:
    return work.out / STATE / f"fold-{number}.safetensors"


def _take(source: NpySource, rows: Indices) -> Samples:
    """The rows with these ascending numbers."""
    given = np.array(source.classes)[source.encode(source.labels.take(rows))]
    trusted = None if source.trusted is None else source.trusted.take(rows)
    return Samples(source.floats(source.embeddings.take(rows), rows), given, trusted)


def _draw(source: NpySource, most: int, seed: int, calibrate: bool = False) -> Indices:
    """Rows of a random sample; rows for calibration are not trusted ones, unless all are."""
    groups = 2 * len(source.classes)  # each class, and separately its trusted samples
    free_only = calibrate and source.trusted_count < source.rows

    def pieces() -> Iterator[Indices]:
        for start, labels in chunks(source.labels):
            given, trusted = source.encode(labels), source.marks(start, start + len(labels))
            drawn = (given >= 0) & (source.counts[given] > 1) & ~(trusted & free_only)
            yield np.where(drawn, given + len(source.classes) * trusted, -1)

    return draw(pieces, groups, most, derive_seed(seed, int(calibrate)))


def draw(pieces: Callable[[], Iterator[Indices]], groups: int, most: int, seed: int) -> Indices:
    """Numbers of random rows, ascending, in memory that grows with the sample only.

    Groups are drawn in proportion to their size. But each gets at least the share it would have if half of the sample
    were divided equally, or all of its rows, so that no rare group is lost. Within a group all rows are equally
    probable.

    Args:
        pieces: returns an iterator over the group of every row, some rows at a time; -1 for rows not to draw.
        groups: how many there are.
        most: rows to draw; at least two of each group are drawn in any case.
        seed: of the order in which rows are drawn.
    """
    counts = np.sum([np.bincount(piece[piece >= 0], minlength=groups) for piece in pieces()], axis=0)
    occupied = max(1, int((counts > 0).sum()))
    shares = np.minimum(counts, max(2, most // (2 * occupied)))
    rare = counts == 0  # groups that get their share, which is more than their proportion
    while True:
        rest = np.cumsum(np.where(rare, 0, counts))
        free = int(np.clip(most - shares[rare].sum(), 0, rest[-1]))
        wanted = np.where(rare, shares, np.diff(rest * free // max(int(rest[-1]), 1), prepend=0))  # adds up to `most`
        if (wanted >= shares).all():
            break
        rare |= wanted < shares
    generator = np.random.default_rng(seed)
    rows = group = np.zeros(0, np.int64)
    key, start = np.zeros(0), 0
    for piece in pieces():
        new = np.flatnonzero(piece >= 0)
        rows, group = np.append(rows, start + new), np.append(group, piece[new])
        key, start = np.append(key, generator.random(len(piece))[new]), start + len(piece)
        order = np.lexsort((key, group))
        place = np.arange(len(order)) - np.searchsorted(group[order], group[order])  # within its group
        order = order[place < wanted[group[order]]]
        rows, group, key = rows[order], group[order], key[order]
    return np.sort(rows)


# judging


class Judge:
    """Judges labels by the classifiers in the files, even right after training: a resumed run has nothing else."""

    def __init__(self, work: Work, source: NpySource, folds: Folds | None = None) -> None:
        self._source, self._folds = source, folds
        files = [work.out / CLASSIFIER] if folds is None else [_fold(work, number) for number in range(folds.count)]
        self._classifiers = [VRIClassifier.load(file) for file in files]
        self._judged = np.flatnonzero(source.counts > 1)  # the only sample of a class can't be compared with others
        self._number = np.full(len(source.classes), -1)  # of each class among the judged ones
        self._number[self._judged] = np.arange(len(self._judged))
        self._number = np.append(self._number, -1)  # of a missing label, whose place is -1
        self._columns = []  # of the judged classes, for each classifier
        for classifier in self._classifiers:
            assert classifier.module_ is not None  # `evidence="network"`
            classifier.module_.to(work.device)
            names = classifier.classes_.tolist()
            self._columns.append([names.index(source.classes[place]) for place in self._judged])

    def probabilities(self, rows: Indices) -> tuple[Tensor, Tensor]:
        """Probabilities (n, c) of the judged classes, and labels, of rows with ascending numbers, some at a time."""
        found = torch.empty(len(rows), len(self._judged), dtype=torch.float64)
        for start in range(0, len(rows), _BLOCK):
            some = rows[start : start + _BLOCK]
            X = self._source.floats(self._source.embeddings.take(some), some)
            found[start : start + len(some)] = torch.from_numpy(self._said(X, some))
        return found, torch.from_numpy(self._number[self._source.encode(self._source.labels.take(rows))])

    def _said(self, X: Any, rows: Indices) -> Numbers:
        """Probabilities of the judged classes; each row's by its classifier."""
        who = np.zeros(len(rows), np.int64) if self._folds is None else self._folds.of(rows)
        said = np.empty((len(rows), len(self._judged)))
        for number, (classifier, columns) in enumerate(zip(self._classifiers, self._columns, strict=True)):
            if len(own := np.flatnonzero(who == number)):
                said[own] = classifier.predict_proba(X[own])[:, columns]
        return said

    def tables(self, rows: range, learned: Learned, confidence: float) -> tuple[Any, Any]:
        """The judgement of some rows' labels, and the corrected labels, as pyarrow tables."""
        pa = importlib.import_module("pyarrow")
        numbers = np.arange(rows.start, rows.stop)
        probabilities, given = self.probabilities(numbers)
        unknown, given = (given < 0).numpy(), given.clamp(min=0)
        trusted = torch.from_numpy(self._source.marks(rows.start, rows.stop))
        right, beliefs = learned.calibration().judge(probabilities, given)
        right[trusted] = 1.0
        beliefs[trusted] = torch.nn.functional.one_hot(given[trusted], beliefs.shape[1]).double()
        places = self._source.encode(self._source.labels.read(rows.start, rows.stop))
        blank = places < 0  # without label: predicted, not judged
        beliefs[torch.from_numpy(blank)] = probabilities[torch.from_numpy(blank)]
        issues = (right < learned.threshold) & ~trusted & ~torch.from_numpy(unknown)
        # for an issue, the best class except the given one, which may still be ahead of each single other class
        suggested = torch.where(issues, beliefs.scatter(1, given[:, None], -1.0).argmax(1), beliefs.argmax(1))
        sure = beliefs.gather(1, suggested[:, None]).squeeze(1)
        changed = ((issues | torch.from_numpy(blank)) & (sure >= confidence)).numpy()
        names, instead = pa.array(self._source.names), self._judged[suggested.numpy()]
        alone = unknown & ~blank  # the only sample of its class
        label = names.take(pa.array(places, mask=blank))

        def single(values: Tensor, empty: NDArray[np.bool_] = alone) -> Any:
            return pa.array(values.numpy().astype(np.float32), mask=empty)

        found = {
            "row": numbers,
            "id": numbers if self._source.ids is None else self._source.ids.read(rows.start, rows.stop),
            "given_label": label,
            "predicted_label": names.take(pa.array(instead, mask=alone)),
            "label_quality": single(right, unknown),
            "is_label_issue": issues.numpy(),
            "predicted_probability": single(sure),
            "outlier_score": single(quality.outlier_score(probabilities)),
        }
        new = names.take(pa.array(np.where(changed, instead, places), mask=blank & ~changed))
        return pa.table(found), pa.table({"row": numbers, "label": new, "given_label": label, "changed": changed})


def _judge(work: Work, source: NpySource, learned: Learned, parts: list[range]) -> None:
    """Write the parts that are missing."""
    missing = [
        k for k in range(len(parts)) if not all(_file(work.out, name, k).exists() for name in (ISSUES, CORRECTED))
    ]
    judge = Judge(work, source, learned.folds(work.options.cross_fit))
    with work.progress.part(JUDGING):
        for number, k in enumerate(missing):
            report(number / len(missing))
            tables = judge.tables(parts[k], learned, work.options.confidence)
            for name, table in zip((ISSUES, CORRECTED), tables, strict=True):
                _file(work.out, name, k).parent.mkdir(exist_ok=True)
                with atomic_write(_file(work.out, name, k)) as file:
                    parquet_library(work.out).write_table(table, file)


def _file(out: Path, name: str, part: int) -> Path:
    return out / Path(name).stem / f"part-{part:05d}.parquet"


# writing


def _write(
    work: Work, source: NpySource, learned: Learned, accuracy: Accuracy, parts: list[range], settings: dict[str, Any]
) -> Summary:
    """Summary and page from the parts on the disk, whether this run or an earlier one wrote them."""
    embeddings = source.embeddings
    describe = with_cards(
        lambda row: {"fields": first_numbers("X", embeddings.read(row, row + 1)[0])},
        embeddings.path,
        source.options,
        {},
        source.rows,
    )
    index = pd.Index(source.names)
    pairs, bins = np.zeros((len(index), len(index)), np.int64), np.zeros(QUALITY_BINS, np.int64)
    doubt, changed, filled = 0.0, 0, 0
    worst: list[pd.DataFrame] = []
    for k in range(len(parts)):
        issues, corrected = (_read(_file(work.out, name, k)) for name in (ISSUES, CORRECTED))
        qualities = issues["label_quality"].drop_null().to_numpy().astype(np.float64)
        doubt += float((1 - qualities).sum())
        bins += np.histogram(qualities, QUALITY_BINS, (0, 1))[0]
        changed += int(corrected["changed"].to_numpy().sum())
        filled += corrected["given_label"].null_count - corrected["label"].null_count
        frame = issues.filter(issues["is_label_issue"]).to_pandas()
        frame["given"] = index.get_indexer(frame["given_label"])
        frame["suggested"] = index.get_indexer(frame["predicted_label"])
        np.add.at(pairs, (frame["given"], frame["suggested"]), 1)
        worst = [pd.concat([*worst, frame]).sort_values(["label_quality", "row"]).head(work.options.max_suspects)]
    judged = np.flatnonzero(source.counts > 1)
    single = len(source.classes) - len(judged)
    labelled = source.rows - source.unlabelled_count
    free = labelled - single - source.trusted_count
    rate = doubt / (free if free > 0 else labelled - single)
    matrix = np.eye(len(source.classes))
    matrix[np.ix_(judged, judged)] = learned.transitions
    return work.write(
        worst[0].to_dict("records"),
        lambda found: _suspect(source, found, describe),
        accuracy,
        {
            "changed": changed,
            "not_judged": single + source.unlabelled_count,
            "unlabelled": source.unlabelled_count,
            "learned_from": learned.learned_from,
            "calibrated_on": learned.calibrated_on,
            "parts": len(parts),
            "seconds": round(learned.seconds, 2),
            "settings": settings,
            "notes": source.notes,
        },
        source=source.embeddings.path.name,
        classes=source.classes,
        samples=labelled,
        trusted=source.trusted_count,
        issues=int(pairs.sum()),
        noise_rate=rate,
        noise_interval=(min(learned.noise_interval[0], rate), max(learned.noise_interval[1], rate)),
        transition_matrix=matrix.tolist(),
        pair_counts=pairs.tolist(),
        quality_counts=bins.tolist(),
        threshold=learned.threshold,
        remarks=[
            *spelling(source.classes, source.counts),
            *without_label(source.unlabelled_count, filled, work.options.confidence, "label_issues", "corrected"),
        ],
    )


def _read(path: Path) -> Any:
    try:
        return parquet_library(path).ParquetFile(path).read()
    except Exception as error:  # pyarrow raises many kinds of errors
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path} is damaged ({reason}); delete it and run the same command again") from None


def _suspect(source: NpySource, found: dict[Any, Any], describe: Callable[[int], dict[str, Any]]) -> Suspect:
    row = int(found["row"])
    shown = describe(row)
    if source.ids is not None:
        shown["fields"] = {"id": str(found["id"]), **shown["fields"]}
    return Suspect(
        id=str(row),  # the user's ids may not be unique
        given=source.classes[found["given"]],
        suggested=source.classes[found["suggested"]],
        quality=found["label_quality"],
        confidence=found["predicted_probability"],
        outlier=found["outlier_score"],
        **shown,
    )
