"""`vri clean` as a function: from a source to a list of wrong labels, corrected labels, a classifier and a page."""

import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vri import encoders, quality
from vri.cleaning.context import neighbours
from vri.cleaning.encoding import EVIDENCE
from vri.cleaning.npy import open_npy
from vri.cleaning.options import (
    COCO,
    IMAGES,
    ROWS,
    CleanOptions,
    SourceOptions,
    check_options,
    checked_device,
    kind_of,
)
from vri.cleaning.probabilities import read_probabilities
from vri.cleaning.progress import ENCODING, JUDGING, PAGE, READING, TRAINING, Progress
from vri.cleaning.remarks import copied_labels
from vri.cleaning.report import Summary
from vri.cleaning.results import count_of, write_results
from vri.cleaning.sources import Source, file_hash, open_source
from vri.cleaning.state import (
    CLASSIFIER,
    FINDINGS,
    STATE,
    Findings,
    begin,
    check_out,
    load_found,
    save_found,
)
from vri.cleaning.stream import clean_stream, sample_size
from vri.cleaning.work import Accuracy, Samples, Work, own_accuracy
from vri.estimator.issues import judge_labels

_SHOWN = 0.2  # share of the samples that are expected on the page, where they are read again
_RANKS = ("predicted", "second", "third")  # of a sample's likely labels, in the columns of `find_label_issues`


def clean(
    path: Path,
    out: Path,
    source_options: SourceOptions,
    options: CleanOptions,
    *,
    fresh: bool = False,
    progress: bool = True,
    verbose: bool = False,
    command: str = "",
) -> Summary:
    """Find the wrong labels of a source and write everything about them to `out`.

    The same call resumes where an earlier one was stopped; if that one was finished, it only writes the files again.

    Args:
        path: folder of images, table, .npz or .npy file; it is only read, never changed.
        out: folder for the results.
        source_options: how to read the source.
        options: how to look for wrong labels.
        fresh: remove an earlier run in `out` first.
        progress: report progress on stderr.
        verbose: also report there how long each part took.
        command: shown on the page.
    """
    work = Work(out, options, checked_device(options, source_options), Progress(progress), command, source_options)
    summary = _clean(work, path, source_options, fresh)
    if verbose:
        work.progress.tell_times()
    return summary


def _clean(work: Work, path: Path, source_options: SourceOptions, fresh: bool) -> Summary:
    out, options = work.out, work.options
    check_out(out, path)
    kind = kind_of(path)
    check_options(path, kind, source_options)
    if kind in (IMAGES, COCO):
        source_options = _with_encoder(source_options, options)
    if options.sample is not None and kind != ROWS:
        raise ValueError("--sample can only be used with an .npy file; leave it out")
    if kind == ROWS and options.pred_probs is None:
        arrays = open_npy(path, source_options)
        sample = options.sample or sample_size(arrays)
        if sample < arrays.rows:
            return clean_stream(work, arrays, sample, fresh)
    from_scratch = source_options.weights is None and source_options.encoder in (None, "none")
    if kind == IMAGES and from_scratch and options.pred_probs is None:
        work.expect_images(sum(file.is_file() for file in path.rglob("*")), source_options.image_size or 32)
    with work.progress.part(READING):
        source = open_source(path, source_options, inputs=options.pred_probs is None)
    shown = min(len(source.labels), options.max_suspects)
    work.progress.expect(page=_SHOWN * shown / len(source.labels) * work.progress.times[READING][0])
    work.tell_about(len(source.labels), len(source.classes()), count_of(source.trusted), source.notes)
    settings = _settings(source, source_options, options)
    # before anything is written: the probabilities may be wrong, and judging takes seconds
    findings = None if options.pred_probs is None else _judge(work, source, options.pred_probs)
    again = begin(out, settings, fresh)
    if findings is not None:
        save_found(out / STATE / FINDINGS, findings)
    elif (out / CLASSIFIER).exists() and (findings := load_found(out / STATE / FINDINGS, Findings)) is not None:
        work.tell("everything was trained before; writing the results again (--fresh trains again)")
    else:
        if again:
            work.tell(f"resuming the run in {out}")
        findings = _train(work, source)
        save_found(out / STATE / FINDINGS, findings)
    accuracy = Accuracy(None, findings.accuracy, findings.measured_on)
    if options.compare:
        accuracy = work.compare(lambda: _samples(work, source, _inputs(work, source))[0])
    with work.progress.part(PAGE):
        return write_results(work, source, findings, accuracy, settings)


def _with_encoder(source_options: SourceOptions, options: CleanOptions) -> SourceOptions:
    """Images are read by an encoder if one is installed and no option says how to train a network on them."""
    network = (source_options.backbone, source_options.weights, options.epochs, options.pred_probs)
    if (
        source_options.encoder is not None
        or any(o is not None for o in network)
        or not encoders.installed(encoders.IMAGES)
    ):
        return source_options
    return replace(source_options, encoder="auto")


# training


def _inputs(work: Work, source: Source) -> Any:
    with work.progress.part(ENCODING) if source.encoder else nullcontext():
        return source.make_inputs(work.out / STATE, work.device)


def _samples(work: Work, source: Source, X: Any) -> tuple[Samples, NDArray[np.int64]]:
    """The samples that can be judged, and their numbers: the only one of a class can't be compared with others."""
    labels = np.array(source.labels)
    names, counts = np.unique(labels, return_counts=True)
    rows = np.flatnonzero(np.isin(labels, names[(counts > 1) & (names != "")]))
    trusted = None if source.trusted is None else source.trusted[rows]
    X = X if len(rows) == len(labels) else X[rows]  # features stay in their file
    evidence = "auto" if source.encoder is None or work.options.epochs else EVIDENCE
    return Samples(X, labels[rows], trusted, source.module, evidence), rows


def _train(work: Work, source: Source) -> Findings:
    start = time.perf_counter()
    X = _inputs(work, source)
    samples, rows = _samples(work, source, X)
    remarks = copied_labels(samples.X, samples.given, source.columns)
    with work.progress.part(TRAINING):
        model = work.train(samples, "vri", "vri", work.options.cross_fit)
    model.save(work.out / CLASSIFIER)
    frame = model.find_label_issues()
    classes = source.classes()
    place = {name: number for number, name in enumerate(classes)}
    known = np.array([place[str(name)] for name in model.classes_])
    matrix = np.eye(len(classes))
    matrix[np.ix_(known, known)] = model.transition_matrix_

    def spread(values: Any, empty: Any) -> NDArray[Any]:
        whole = np.full((len(source.labels), *np.shape(values)[1:]), empty)
        whole[rows] = values
        return whole

    accuracy = own_accuracy(model, samples)
    suggested = spread([place[str(name)] for name in frame["predicted_label"]], -1)
    confidence, outlier = spread(frame["predicted_probability"], np.nan), spread(frame["outlier_score"], np.nan)
    unknown = np.flatnonzero(np.array(source.labels) == "")
    if len(unknown):
        probabilities = model.predict_proba(X[unknown])
        suggested[unknown], confidence[unknown] = known[probabilities.argmax(1)], probabilities.max(1)
        outlier[unknown] = quality.outlier_score(torch.from_numpy(probabilities)).numpy()
    doubtful = np.argsort(frame["label_quality"].to_numpy(), kind="stable")[: work.options.max_suspects]
    likely = frame[[f"{rank}_label" for rank in _RANKS]].to_numpy().tolist()
    with work.progress.part(JUDGING):
        near = neighbours(model, samples.X, doubtful, work.options.seed, work.device)
    return Findings(
        classes=classes,
        judged=spread(True, False),
        suggested=suggested,
        confidence=confidence,
        quality=spread(frame["label_quality"], np.nan),
        issue=spread(frame["is_label_issue"], False),
        outlier=outlier,
        transition_matrix=matrix,
        noise_rate=float(model.noise_rate_),
        noise_interval=(float(model.noise_rate_interval_[0]), float(model.noise_rate_interval_[1])),
        threshold=float(model.threshold_),
        accuracy=accuracy.vri,
        measured_on=accuracy.measured_on,
        seconds=time.perf_counter() - start,
        likely=spread([[place.get(name, -1) for name in names] for names in likely], -1),
        likely_probability=spread(frame[[f"{rank}_probability" for rank in _RANKS]], np.nan),
        near=spread(np.where(near >= 0, rows[near], -1), -1),
        remarks=remarks,
    )


def _judge(work: Work, source: Source, path: Path) -> Findings:
    """By the probabilities in a file."""
    start, classes = time.perf_counter(), source.classes()
    with work.progress.part(JUDGING):
        names, probabilities = read_probabilities(path, source.ids, classes)
        labels = np.array([label or None for label in source.labels], object)
        found = judge_labels(labels, probabilities, classes=names, trusted=source.trusted, unlabelled="predict")
    suggested, confidence = found.suggestions()
    matrix = found.transitions
    if matrix is None:  # too many classes to fit one: how often labels go with classes
        matrix = np.eye(len(names)) * 1e-9
        np.add.at(matrix, (suggested[found.given >= 0, 0], found.given[found.given >= 0]), 1)
        matrix /= matrix.sum(1, keepdims=True)
    return Findings(
        classes=names,
        judged=found.given >= 0,
        suggested=suggested[:, 0],
        confidence=confidence[:, 0],
        quality=found.quality,
        issue=found.issue,
        outlier=found.outlier,
        transition_matrix=matrix,
        noise_rate=found.noise_rate,
        noise_interval=found.noise_interval,
        threshold=found.threshold,
        accuracy=None,
        measured_on="",
        seconds=time.perf_counter() - start,
        likely=suggested,
        likely_probability=confidence,
    )


def _settings(source: Source, source_options: SourceOptions, options: CleanOptions) -> dict[str, Any]:
    """Everything that the findings depend on; without what may differ when a run is resumed."""
    chosen = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(source_options).items()
        if value is not False
    }
    chosen |= {name: None for name, value in chosen.items() if str(value).endswith(".npy")}  # in the fingerprint
    marks = None if source.trusted is None else sha256(np.packbits(source.trusted).tobytes()).hexdigest()[:16]
    return chosen | {
        "trusted": None if marks is None else f"{count_of(source.trusted)} samples ({marks})",
        "encoder": source.encoder,
        "images_root": None,
        "weights": None if source_options.weights is None else source_options.weights.name,
        "cross_fit": options.cross_fit,
        "epochs": options.epochs,
        "pred_probs": None if options.pred_probs is None else file_hash(options.pred_probs),
        "content of the source": source.fingerprint,
    }
