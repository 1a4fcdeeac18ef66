"""`vri clean` as a function: from a source to a list of wrong labels, corrected labels, a classifier and a page."""

import json
import math
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

import vri
from vri.cleaning.cells import escape, write_rows
from vri.cleaning.report import QUALITY_BINS, Summary, Suspect, write_report
from vri.cleaning.sources import Source, SourceOptions, open_source
from vri.cleaning.state import OUTPUTS, STATE, Findings, begin, check_out
from vri.estimator import VRIClassifier
from vri.files import atomic_write

ENOUGH_TRUSTED = 30  # held-out trusted samples to measure accuracy on; with fewer, given labels say more

_ISSUES, _CORRECTED, _CLASSIFIER, _SUMMARY, _REPORT = OUTPUTS


@dataclass(frozen=True)
class CleanOptions:
    """How to look for wrong labels.

    Attributes:
        confidence: probability from which on a suggested label goes into corrected.csv.
        cross_fit: number of further networks, each scoring samples it was not trained on; 0 scores by one network.
        epochs: passes through the data; chosen by its size where None.
        seed: of all that is random.
        device: auto, cpu, cuda or another name of torch.
        max_suspects: most samples on the page.
    """

    confidence: float = 0.9
    cross_fit: int = 0
    epochs: int | None = None
    seed: int = 0
    device: str = "auto"
    max_suspects: int = 5000


def clean(
    path: Path,
    out: Path,
    source_options: SourceOptions,
    options: CleanOptions,
    *,
    fresh: bool = False,
    progress: bool = True,
    command: str = "",
) -> Summary:
    """Find the wrong labels of a source and write all there is to know about them to `out`.

    The same call goes on where an earlier one was stopped, and writes the files anew where it was finished.

    Args:
        path: folder of images, table or .npz file; it is only read.
        out: folder for the results.
        source_options: how to read the source.
        options: how to look for wrong labels.
        fresh: remove an earlier run in `out` first.
        progress: tell on stderr what is going on.
        command: shown on the page.
    """
    device = usable_device(options)
    check_out(out, path)

    def tell(line: str) -> None:
        if progress:
            print(line, file=sys.stderr)

    tell(f"reading {path}")
    source = open_source(path, source_options, progress)
    for note in source.notes:
        tell(f"  {note}")
    tell(f"  {len(source.labels):,} samples, {len(set(source.labels)):,} labels, {_count(source.trusted):,} trusted")
    settings = _settings(source, source_options, options)
    again = begin(out, settings, fresh)
    findings = Findings.load(out) if (out / _CLASSIFIER).exists() else None
    if findings is not None:
        tell("everything was trained before; writing the results anew (--fresh trains again)")
    else:
        tell(f"going on with the run in {out}" if again else f"beginning a run in {out}")
        findings = _train(source, out, options, device, progress, tell)
        findings.save(out)
    tell("writing the results")
    return _write(source, findings, out, options, settings, command, progress)


# training


def _train(
    source: Source, out: Path, options: CleanOptions, device: torch.device, progress: bool, tell: Any
) -> Findings:
    start = time.perf_counter()
    X = source.make_inputs(out / STATE, device, progress)
    labels = np.array(source.labels)
    names, counts = np.unique(labels, return_counts=True)
    judged = ~np.isin(labels, names[counts == 1])  # the only sample of a class can't be compared with any other
    rows = np.flatnonzero(judged)
    X, given = X[rows], labels[rows]
    trusted = None if source.trusted is None else source.trusted[rows]

    def classifier(method: str, folder: str, cross_fit: int | None) -> VRIClassifier:
        return VRIClassifier(
            source.module,
            method=method,
            epochs=options.epochs,
            cross_fit=cross_fit,
            random_state=options.seed,
            device=str(device),
            verbose=int(progress),
            checkpoint_dir=out / STATE / folder,
        )

    tell(f"training{f' with {options.cross_fit}-fold cross-fitting' if options.cross_fit else ''}")
    model = classifier("vri", "vri", options.cross_fit or None)
    model.fit(X, given, trusted=trusted)
    if options.cross_fit:
        held = model.fold_ == 0
        predicted = model.classes_[model.out_of_sample_proba_[held].argmax(1)]
    else:
        held = hold_out(given, options.seed)
        tell("training once more without a fifth of the samples, to measure accuracy on them")
        rest = None if trusted is None else trusted[~held]
        predicted = classifier("vri", "held-out", None).fit(X[~held], given[~held], trusted=rest).predict(X[held])
    tell("training plainly on the given labels, to compare")
    plain = classifier("cross-entropy", "plain", None).fit(X[~held], given[~held]).predict(X[held])
    before, after, accuracy_on = accuracies(plain, predicted, given[held], None if trusted is None else trusted[held])
    tell("scoring")
    model.save(out / _CLASSIFIER)
    frame = model.find_label_issues()
    classes = sort_labels(set(source.labels))
    place = {name: number for number, name in enumerate(classes)}
    seen = np.array([place[str(name)] for name in model.classes_])
    matrix = np.eye(len(classes))
    matrix[np.ix_(seen, seen)] = model.transition_matrix_

    def spread(values: Any, empty: Any) -> NDArray[Any]:
        whole = np.full(len(labels), empty)
        whole[rows] = values
        return whole

    return Findings(
        classes=classes,
        judged=judged,
        suggested=spread([place[str(name)] for name in frame["predicted_label"]], -1),
        confidence=spread(frame["predicted_probability"], np.nan),
        quality=spread(frame["label_quality"], np.nan),
        issue=spread(frame["is_label_issue"], False),
        outlier=spread(frame["outlier_score"], np.nan),
        transition_matrix=matrix,
        noise_rate=float(model.noise_rate_),
        noise_interval=(float(model.noise_rate_interval_[0]), float(model.noise_rate_interval_[1])),
        threshold=float(model.threshold_),
        accuracy_before=before,
        accuracy_after=after,
        accuracy_on=accuracy_on,
        seconds=time.perf_counter() - start,
    )


def accuracies(
    plain: NDArray[Any], predicted: NDArray[Any], given: NDArray[Any], trusted: NDArray[np.bool_] | None
) -> tuple[float, float, str]:
    """Accuracy of plain training and of vri on held-out samples, and what it was measured on."""
    known = np.zeros(len(given), bool) if trusted is None else trusted
    enough = int(known.sum()) >= ENOUGH_TRUSTED
    scored = known if enough else np.ones(len(known), bool)
    right = given[scored]
    before, after = float(np.mean(plain[scored] == right)), float(np.mean(predicted[scored] == right))
    if enough:
        return before, after, f"{len(right):,} trusted samples held out"
    return before, after, f"{len(right):,} samples held out, against their given labels"


def hold_out(given: NDArray[Any], seed: int) -> NDArray[np.bool_]:
    """A fifth of the samples of each class, at least one; no class has a single sample."""
    generator = np.random.default_rng(seed)
    held = np.zeros(len(given), bool)
    for name in np.unique(given):
        members = generator.permutation(np.flatnonzero(given == name))
        held[members[: math.ceil(len(members) / 5)]] = True
    return held


def sort_labels(labels: set[str]) -> list[str]:
    """By value if all are whole numbers, else by letter."""
    try:
        return sorted(labels, key=lambda label: (int(label), label))
    except ValueError:
        return sorted(labels)


# writing


def _write(
    source: Source,
    found: Findings,
    out: Path,
    options: CleanOptions,
    settings: dict[str, Any],
    command: str,
    progress: bool,
) -> Summary:
    place = {name: number for number, name in enumerate(found.classes)}
    given = np.array([place[label] for label in source.labels])
    order = np.lexsort((np.arange(len(given)), found.quality))  # NaN comes last
    suspects = order[found.issue[order]]
    changed = found.issue & (found.confidence >= options.confidence)
    if source.trusted is not None:
        changed &= ~source.trusted
    write_rows(
        out / _ISSUES,
        (
            "id",
            "given_label",
            "predicted_label",
            "label_quality",
            "is_label_issue",
            "predicted_probability",
            "outlier_score",
        ),
        _issue_rows(source, found, order),
    )
    write_rows(out / _CORRECTED, ("id", "label", "given_label", "changed"), _corrected_rows(source, found, changed))
    pairs = np.zeros((len(found.classes), len(found.classes)), np.int64)
    np.add.at(pairs, (given[suspects], found.suggested[suspects]), 1)
    summary = Summary(
        source=source.name,
        classes=found.classes,
        samples=len(given),
        trusted=_count(source.trusted),
        issues=len(suspects),
        noise_rate=found.noise_rate,
        noise_interval=found.noise_interval,
        transition_matrix=found.transition_matrix.tolist(),
        pair_counts=pairs.tolist(),
        quality_counts=np.histogram(found.quality[found.judged], QUALITY_BINS, (0, 1))[0].tolist(),
        threshold=found.threshold,
        accuracy_before=found.accuracy_before,
        accuracy_after=found.accuracy_after,
        accuracy_on=found.accuracy_on,
        version=vri.__version__,
        command=command,
    )
    about = {
        "confidence": options.confidence,
        "changed": int(changed.sum()),
        "not_judged": int((~found.judged).sum()),
        "seconds": round(found.seconds, 2),
        "settings": settings,
        "notes": source.notes,
        "versions": versions(),
    }
    with atomic_write(out / _SUMMARY) as file:
        file.write(json.dumps(asdict(summary) | about, indent=1, ensure_ascii=False).encode())
    shown = tqdm(
        suspects[: options.max_suspects], "suspects", disable=None if progress else True, file=sys.stderr, leave=False
    )
    write_report(out / _REPORT, summary, (_suspect(source, found, int(i)) for i in shown))
    return summary


def _issue_rows(source: Source, found: Findings, order: NDArray[np.int64]) -> Iterator[tuple[str, ...]]:
    for i in order.tolist():
        told = found.judged[i]
        yield (
            escape(source.ids[i]),
            escape(source.labels[i]),
            escape(found.classes[found.suggested[i]]) if told else "",
            f"{found.quality[i]:.6f}" if told else "",
            _yes_no(found.issue[i]),
            f"{found.confidence[i]:.6f}" if told else "",
            f"{found.outlier[i]:.6f}" if told else "",
        )


def _corrected_rows(source: Source, found: Findings, changed: NDArray[np.bool_]) -> Iterator[tuple[str, ...]]:
    for i, (name, given) in enumerate(zip(source.ids, source.labels, strict=True)):
        label = found.classes[found.suggested[i]] if changed[i] else given
        yield escape(name), escape(label), escape(given), _yes_no(changed[i])


def _suspect(source: Source, found: Findings, i: int) -> Suspect:
    seen = source.describe(i)
    return Suspect(
        id=source.ids[i],
        given=source.labels[i],
        suggested=found.classes[found.suggested[i]],
        quality=float(found.quality[i]),
        confidence=float(found.confidence[i]),
        outlier=float(found.outlier[i]),
        image=seen.image,
        fields=seen.fields,
        text=seen.text,
    )


def _yes_no(value: Any) -> str:
    return "true" if value else "false"


def _count(mask: NDArray[np.bool_] | None) -> int:
    return 0 if mask is None else int(mask.sum())


# settings


def usable_device(options: CleanOptions) -> torch.device:
    """The device; all mistakes in the options are told at once."""
    wrong = []
    if not 0 <= options.confidence <= 1:
        wrong.append(f"--confidence is {options.confidence:g}; expected 0 to 1")
    if options.cross_fit != 0 and options.cross_fit < 2:
        wrong.append(f"--cross-fit is {options.cross_fit}; expected 2 or more, or 0 for none")
    if options.epochs is not None and options.epochs < 1:
        wrong.append(f"--epochs is {options.epochs}; expected 1 or more")
    if not 0 <= options.seed < 2**32:
        wrong.append(f"--seed is {options.seed}; expected 0 to {2**32 - 1}")
    if options.max_suspects < 1:
        wrong.append(f"--max-suspects is {options.max_suspects}; expected 1 or more")
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        wrong.append(f"--device is {options.device!r}, which can't be used ({reason}); expected auto, cpu or cuda")
    if wrong:
        raise ValueError("; ".join(wrong))
    return device


def _settings(source: Source, source_options: SourceOptions, options: CleanOptions) -> dict[str, Any]:
    """All that the findings depend on; what may differ when a run goes on is left out."""
    chosen = {name: value for name, value in asdict(source_options).items() if name not in ("trusted", "weights")}
    trusted = None if source.trusted is None else sha256(np.packbits(source.trusted).tobytes()).hexdigest()[:16]
    return {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()},
        "weights": None if source_options.weights is None else source_options.weights.name,
        "cross_fit": options.cross_fit,
        "epochs": options.epochs,
        "content of the source": source.fingerprint,
        "trusted samples": None if trusted is None else f"{_count(source.trusted)} ({trusted})",
    }


def versions() -> dict[str, str]:
    """Of what the results depend on."""
    packages = ("torch", "numpy", "scikit-learn", "pandas")
    return {"vri": vri.__version__, "python": platform.python_version()} | {p: metadata.version(p) for p in packages}
