"""`vri clean` on an .npy file of any size: learn from a sample of its rows, judge all of them part by part."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import vri
from vri import quality
from vri.cleaning.drawing import draw
from vri.cleaning.npy import Npy
from vri.cleaning.parts import Parts, Totals
from vri.cleaning.pipeline import CleanOptions, accuracies, hold_out, usable_device, versions
from vri.cleaning.report import Summary, Suspect, write_report
from vri.cleaning.sources import SourceOptions, file_hash
from vri.cleaning.state import OUTPUTS, STATE, begin, check_out, load_found, save_found
from vri.cleaning.stream_judge import Judge, Learned, Probabilities
from vri.cleaning.stream_source import Stream, blocks, open_stream
from vri.cleaning.tables import parquet_library
from vri.core.randomness import derive_seed
from vri.estimator import VRIClassifier
from vri.files import atomic_write

MOST_SAMPLED = 200_000
_BUDGET = 1.4e9  # bytes that training may take: about eight copies of the sample and of its probabilities
_PART = 2**26  # bytes of embeddings in a part
_MOST_ROWS = 250_000  # in a part
_SHOWN_NUMBERS = 8  # of an embedding
_SECONDS = 10  # between two lines of progress

_, _, _CLASSIFIER, _SUMMARY, _REPORT = OUTPUTS
_LEARNED = "learned.npz"


def clean_stream(
    path: Path,
    out: Path,
    source_options: SourceOptions,
    options: CleanOptions,
    *,
    sample: int | None = None,
    fresh: bool = False,
    progress: bool = True,
    command: str = "",
) -> Summary:
    """Find the wrong labels of embeddings that need not fit in memory, and write all there is to know to `out`.

    The same call goes on where an earlier one was stopped: with the epoch of the training, or the part of the results,
    that it had not finished.

    Args:
        path: .npy file of embeddings, (n, d); it is only read.
        out: folder for the results.
        source_options: `label`, `id` and `trusted` are the names of .npy files with an entry a row.
        options: how to look for wrong labels.
        sample: rows to learn from; by default as many as some hundred megabytes hold.
        fresh: remove an earlier run in `out` first.
        progress: tell on stderr what is going on.
        command: shown on the page.
    """
    device = usable_device(options)
    _check(path, source_options, options, sample)
    check_out(out, path)
    parquet_library(out)  # before hours of work, not after

    def tell(line: str) -> None:
        if progress:
            print(line, file=sys.stderr)

    tell(f"reading the labels of {path}")
    stream = open_stream(path, source_options)
    for note in stream.notes:
        tell(f"  {note}")
    tell(f"  {stream.rows:,} samples, {len(stream.classes):,} labels, {stream.trusted_count:,} trusted")
    number = sample or sample_size(stream.embeddings.shape[1], len(stream.classes))
    parts = Parts(out, stream.rows, _rows_a_part(stream.embeddings))
    settings = _settings(stream, source_options, options, number, parts)
    again = begin(out, settings, fresh)
    learned = load_found(out / STATE / _LEARNED, Learned) if (out / _CLASSIFIER).exists() else None
    if learned is None:
        tell(f"going on with the run in {out}" if again else f"beginning a run in {out}")
        learned = _learn(stream, out, options, number, device, progress, tell)
        save_found(out / STATE / _LEARNED, learned)
    tell("judging all rows")
    judge = Judge.load(stream, learned, out / _CLASSIFIER, device, options.confidence)
    for part in _watched(parts, progress):
        parts.write(part, judge.rows(part.start, part.stop))
    tell("writing the results")
    return _write(stream, learned, parts, out, options, settings, command)


# settings


def _check(path: Path, source: SourceOptions, options: CleanOptions, sample: int | None) -> None:
    no_part = ("features", "text", "encoding", "backbone", "image_size", "weights")
    wrong = [f"--{name.replace('_', '-')}" for name in no_part if getattr(source, name) is not None]
    if options.cross_fit:
        wrong.append("--cross-fit")
    if wrong:
        raise ValueError(f"{', '.join(wrong)} can't be used with an .npy file; leave it out")
    if source.label is None:
        raise ValueError(f"--label is missing; {path} holds embeddings alone: name the .npy file of their labels")
    if sample is not None and sample < 2:
        raise ValueError(f"--sample is {sample}; expected 2 or more rows to learn from")


def sample_size(width: int, classes: int) -> int:
    """Rows that training can hold in memory, at most 200,000."""
    return int(min(MOST_SAMPLED, _BUDGET // (8 * (4 * width + 8 * classes))))


def _rows_a_part(embeddings: Npy) -> int:
    return max(1, min(_PART // embeddings.row_bytes, _MOST_ROWS))


def _settings(
    stream: Stream, source: SourceOptions, options: CleanOptions, sample: int, parts: Parts
) -> dict[str, Any]:
    """All that the results depend on. Embeddings are known by their size and date: to read them takes too long."""
    changed = datetime.fromtimestamp(stream.embeddings.path.stat().st_mtime, UTC).isoformat()
    columns = {"label": stream.labels, "trusted": stream.trusted, "id": stream.ids}
    return {
        "embeddings": f"{stream.embeddings.shape} {stream.embeddings.dtype}, written {changed}",
        **{f"content of --{name}": None if file is None else file_hash(file.path) for name, file in columns.items()},
        "sample": sample,
        "rows a part": parts.size,
        "confidence": options.confidence,
        "epochs": options.epochs,
        "seed": source.seed,
    }


# learning


def _learn(
    stream: Stream,
    out: Path,
    options: CleanOptions,
    number: int,
    device: torch.device,
    progress: bool,
    tell: Callable[[str], None],
) -> Learned:
    start = time.perf_counter()
    groups = len(stream.classes) * (1 if stream.trusted is None else 2)
    rows = draw(stream.groups(), stream.rows, number, groups, derive_seed(options.seed, 0))
    tell(f"learning from {len(rows):,} of {stream.rows:,} samples")
    X = stream.floats(rows)
    given = np.array(stream.classes)[stream.encode(stream.labels.take(rows))]
    trusted = None if stream.trusted is None else stream.trusted.take(rows)

    def classifier(method: str, folder: str) -> VRIClassifier:
        return VRIClassifier(
            method=method,
            epochs=options.epochs,
            random_state=options.seed,
            device=str(device),
            verbose=int(progress),
            checkpoint_dir=out / STATE / folder,
        )

    classifier("vri", "vri").fit(X, given, trusted=trusted).save(out / _CLASSIFIER)
    held = hold_out(given, options.seed)
    tell("training once more without a fifth of the sample, to measure accuracy on it")
    rest, ours = X[~held], X[held]
    del X  # it may be a quarter of the memory
    known = None if trusted is None else trusted[~held]
    predicted = classifier("vri", "held-out").fit(rest, given[~held], trusted=known).predict(ours)
    tell("training plainly on the given labels, to compare")
    plain = classifier("cross-entropy", "plain").fit(rest, given[~held]).predict(ours)
    del rest, ours
    before, after, accuracy_on = accuracies(plain, predicted, given[held], None if trusted is None else trusted[held])

    tell("calibrating")
    probabilities, labels = _calibration_sample(stream, out / _CLASSIFIER, number, device, options.seed)
    verdict = quality.judge(probabilities, labels)
    calibration = quality.Calibration.learn(probabilities, labels, verdict)
    return Learned(
        transitions=calibration.transitions.numpy(),
        lifts=calibration.lifts.numpy(),
        scores=calibration.scores.numpy(),
        qualities=calibration.qualities.numpy(),
        threshold=quality.threshold(verdict.label_quality, VRIClassifier().precision),
        noise_interval=verdict.noise_interval,
        accuracy_before=before,
        accuracy_after=after,
        accuracy_on=accuracy_on,
        learned_from=len(rows),
        calibrated_on=len(labels),
        seconds=time.perf_counter() - start,
    )


def _calibration_sample(
    stream: Stream, file: Path, number: int, device: torch.device, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and labels of another sample.

    As many of its rows were learned from as of all rows, so that the classifier is as sure of them as it is of the
    rest; those it has learned from, it knows better. Trusted labels are no example of those that are to be judged.
    """
    count, own_seed = len(stream.classes), derive_seed(seed, 1)
    rows = draw(stream.groups(only_free=True), stream.rows, number, count, own_seed)
    if not len(rows):  # where all are trusted, there is still a matrix to estimate
        rows = draw(stream.groups(), stream.rows, number, 2 * count, own_seed)
    classifier = Probabilities.load(stream, file, device)
    found = torch.empty(len(rows), len(stream.judged), dtype=torch.float64)
    for block in blocks(len(rows), classifier.row_bytes):
        found[block] = classifier(stream.floats(rows[block]))
    return found, torch.from_numpy(classifier.compact[stream.encode(stream.labels.take(rows))])


# judging


def _watched(parts: Parts, progress: bool) -> Iterator[range]:
    """The parts that are missing, with a bar of the rows and the time left; lines where stderr is no terminal."""
    todo = parts.missing()
    left = sum(map(len, todo))
    before, began, told = parts.rows - left, time.monotonic(), time.monotonic()
    terminal = sys.stderr is not None and sys.stderr.isatty()
    bar = tqdm(total=parts.rows, initial=before, unit=" rows", unit_scale=True, disable=not (progress and terminal))
    with bar:
        for part in todo:
            yield part
            bar.update(len(part))
            left -= len(part)
            now, done = time.monotonic(), parts.rows - left
            if progress and not terminal and (left == 0 or now - told > _SECONDS):
                told, seconds = now, left * (now - began) / (done - before)
                print(f"{done:,} of {parts.rows:,} rows ({seconds:.0f} s left)", file=sys.stderr)


# writing


def _write(
    stream: Stream,
    learned: Learned,
    parts: Parts,
    out: Path,
    options: CleanOptions,
    settings: dict[str, Any],
    command: str,
) -> Summary:
    """Summary and page, from the parts on the disk: it makes no difference which start wrote them."""
    totals = Totals(stream.names, options.max_suspects)
    for frame in parts.read():
        totals.add(frame)
    single = len(stream.classes) - len(stream.judged)
    judged = stream.rows - single
    free = judged - stream.trusted_count if judged > stream.trusted_count else judged
    rate = totals.doubt / free
    low, high = learned.noise_interval
    matrix = np.eye(len(stream.classes))
    matrix[np.ix_(stream.judged, stream.judged)] = learned.transitions
    summary = Summary(
        source=stream.embeddings.path.name,
        classes=stream.classes,
        samples=stream.rows,
        trusted=stream.trusted_count,
        issues=int(totals.pairs.sum()),
        noise_rate=rate,
        noise_interval=(min(low, rate), max(high, rate)),
        transition_matrix=matrix.tolist(),
        pair_counts=totals.pairs.tolist(),
        quality_counts=totals.qualities.tolist(),
        threshold=learned.threshold,
        accuracy_before=learned.accuracy_before,
        accuracy_after=learned.accuracy_after,
        accuracy_on=learned.accuracy_on,
        version=vri.__version__,
        command=command,
    )
    about = {
        "confidence": options.confidence,
        "changed": totals.changed,
        "not_judged": single,
        "learned_from": learned.learned_from,
        "calibrated_on": learned.calibrated_on,
        "parts": len(parts),
        "seconds": round(learned.seconds, 2),
        "settings": settings,
        "notes": stream.notes,
        "versions": versions(),
    }
    with atomic_write(out / _SUMMARY) as file:
        file.write(json.dumps(asdict(summary) | about, indent=1, ensure_ascii=False).encode())
    suspects = totals.suspects.to_dict("records")
    write_report(out / _REPORT, summary, (_suspect(stream, row) for row in suspects))
    return summary


def _suspect(stream: Stream, found: Mapping[Any, Any]) -> Suspect:
    row = int(found["row"])
    fields = {} if stream.ids is None else {"id": str(found["id"])}
    numbers = stream.embeddings.read(row, row + 1)[0, :_SHOWN_NUMBERS].tolist()
    return Suspect(
        id=str(row),  # ids of the user may come twice
        given=stream.classes[int(found["given"])],
        suggested=stream.classes[int(found["suggested"])],
        quality=float(found["label_quality"]),
        confidence=float(found["predicted_probability"]),
        outlier=float(found["outlier_score"]),
        fields=fields | {f"X[{place}]": f"{number:.4g}" for place, number in enumerate(numbers)},
    )
