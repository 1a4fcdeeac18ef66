"""What a pretrained encoder adds: wrong labels found in its features by VRI and by cleanlab, and without it.

    python benchmarks/encoders.py --seeds 3 --minutes 60     # resumes where it was stopped
    python benchmarks/encoders.py --table                    # docs/encoders.md

Cases: CIFAR-10N (the first 10,000 images with three kinds of human labels; random1 is the one to choose settings on),
Fashion-MNIST (2,000 images, 20 % of the labels made wrong at random), NoisyAG-News (4,000 texts with human labels,
`VRI_NEWS` names the folder of train_noisy.csv and test.csv). What is not there is left out. Features are kept in
`VRI_FEATURES` (~/.cache/vri-features). cleanlab gets the out-of-sample probabilities (5 folds) of logistic regression
on the standardised features, with the C of the best likelihood of held-out given labels, and gives two scores. A seed
decides the folds, and the noise of Fashion-MNIST. "plain" is what `vri clean` learns from without an encoder: TF-IDF
for texts, and for images a small CNN, which takes long (--without-encoder).
"""

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from cleanlab.rank import get_label_quality_scores  # type: ignore[import-untyped]
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from table import RESULTS, Row, fill, read
from vri import VRIClassifier, data, encoders, noise
from vri.cleaning.encoding import EVIDENCE
from vri.cleaning.folders import Backbone
from vri.encoders.features import features
from vri.paper.report import markdown_table, replace_block

RUNS = RESULTS / "encoders.jsonl"
PAGE = Path(__file__).parent.parent / "docs" / "encoders.md"
CACHE = Path(os.environ.get("VRI_FEATURES", "~/.cache/vri-features")).expanduser()
NEWS = Path(os.environ.get("VRI_NEWS", "~/.cache/noisy-ag-news")).expanduser()
KINDS = {"cifar10n": ("worse", "random1", "aggre"), "fashion-mnist": ("uniform 20 %",), "news": ("human",)}
CASES = [f"{name}, {kind}" for name, kinds in KINDS.items() for kind in kinds]
SIZES = {"cifar10n": (10_000, 5_000), "fashion-mnist": (2_000, 1_000), "news": (4_000, 1_000)}  # training, test
ENCODERS = {"cifar10n": "efficientnet-lite0", "fashion-mnist": "efficientnet-lite0", "news": "minilm"}
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
VRI, LR, PLAIN = "vri", "lr", "plain"
CLEANLAB = ("self_confidence", "normalized_margin")

Labels = NDArray[np.int64]


def samples_of(name: str) -> tuple[list[Any], list[Any], Labels, Labels]:
    """Training and test samples as an encoder takes them, with their true classes."""
    count, tested = SIZES[name]
    if name == "news":
        parts = [pd.read_csv(NEWS / f"{file}.csv") for file in ("train_noisy", "test")]
        texts = [list(part["text"].astype(str)) for part in parts]
        truths: list[Any] = [part["gt"] for part in parts]
    else:
        found = data.load(name)
        texts = [
            [image.numpy().transpose(1, 2, 0).repeat(3 // image.shape[0], 2) for image in images[:most]]
            for images, most in ((found.train_x, count), (found.test_x, tested))
        ]
        truths = [found.train_y, found.test_y]
    train, test = (np.asarray(each, np.int64)[:most] for each, most in zip(truths, (count, tested), strict=True))
    return texts[0][:count], texts[1][:tested], train, test


def given_labels(name: str, kind: str, true: Labels, seed: int) -> Labels:
    if name == "news":
        return np.asarray(pd.read_csv(NEWS / "train_noisy.csv")["label"], np.int64)[: len(true)]
    if name == "cifar10n":
        return np.asarray(data.load(name).human_labels[kind], np.int64)[: len(true)]
    drawn = noise.NOISES["uniform"](None, torch.from_numpy(true), num_classes=10, rate=0.2, seed=seed)
    labels: Labels = drawn.labels.numpy()
    return labels


def encoded(name: str, train: Sequence[Any], test: Sequence[Any]) -> tuple[Any, Any]:
    encoder = encoders.load(ENCODERS[name], encoders.TEXTS if name == "news" else encoders.IMAGES)
    parts = (("train", train), ("test", test))
    a, b = (features(encoder, part.__getitem__, len(part), f"{name} {which}", CACHE) for which, part in parts)
    return a, b


def plain(name: str, train: Sequence[Any], test: Sequence[Any]) -> tuple[Any, Any]:
    """What `vri clean` learns from without an encoder."""
    if name == "news":
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectors = TfidfVectorizer(
            ngram_range=(1, 2), min_df=2, max_features=50_000, sublinear_tf=True, dtype=np.float32
        )
        return vectors.fit_transform(train), vectors.transform(test)
    a, b = (np.stack([image.transpose(2, 0, 1) for image in part]) for part in (train, test))
    return a, b


def logistic(x: Any, test: Any, given: Labels, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Out-of-sample probabilities and test predictions; C by the likelihood of the given labels of held-out samples."""
    scaler = StandardScaler().fit(x)
    x, test = scaler.transform(x), scaler.transform(test)
    folds = list(StratifiedKFold(5, shuffle=True, random_state=seed).split(x, given))
    rows, held = folds[0]

    def likelihood(strength: float) -> float:
        model = LogisticRegression(C=strength, max_iter=200).fit(x[rows], given[rows])
        return float(model.predict_log_proba(x[held])[np.arange(len(held)), given[held]].mean())

    best = max(STRENGTHS, key=likelihood)
    said = np.zeros((len(given), int(given.max()) + 1))
    for rows, held in folds:
        said[held] = LogisticRegression(C=best, max_iter=200).fit(x[rows], given[rows]).predict_proba(x[held])
    return said, LogisticRegression(C=best, max_iter=200).fit(x, given).predict(test)


def measure(settings: Row) -> Row | None:
    name, kind = settings["case"].split(", ")
    way, seed = settings["way"], settings["seed"]
    warnings.simplefilter("ignore")
    try:
        train, test, true, test_true = samples_of(name)
        given = given_labels(name, kind, true, seed)
        x, tested = (plain if way == PLAIN else encoded)(name, train, test)
    except (FileNotFoundError, ImportError) as error:
        print(f"{settings['case']} is left out: {error}")
        return None
    wrong = given != true
    began = time.process_time()
    found: Row = {"wrong": float(wrong.mean())}
    if way == LR:
        said, predicted = logistic(x, tested, given, seed)
        scores = {method: get_label_quality_scores(given, said, method=method) for method in CLEANLAB}
    else:
        module = Backbone("small_cnn", 32, seed) if way == PLAIN and name != "news" else None
        evidence = "auto" if way == PLAIN else EVIDENCE
        model = VRIClassifier(module, evidence=evidence, random_state=seed).fit(x, given)
        predicted, scores = model.predict(tested), {"quality": model.label_quality_}
        found |= {"evidence": model.evidence_weights_, "rate": float(model.noise_rate_)}
    return found | {
        "ap": {name: float(average_precision_score(wrong, -each)) for name, each in scores.items()},
        "accuracy": float((predicted == test_true).mean()),
        "seconds": time.process_time() - began,
    }


def table() -> str:
    rows = read(RUNS)
    lines = []
    for case in CASES:
        ways = {way: [row for row in rows if row["case"] == case and row["way"] == way] for way in (VRI, LR, PLAIN)}
        known = [row for runs in ways.values() for row in runs]
        if not known:
            continue
        cells = [case, f"{statistics.mean(row['wrong'] for row in known):.0%}"]
        for way, score in ((VRI, "quality"), *((LR, each) for each in CLEANLAB), (PLAIN, "quality")):
            cells.append(_mean([row["ap"][score] for row in ways[way]]))
        cells += [_mean([row["accuracy"] for row in runs]) for runs in ways.values()]
        lines.append([*cells, " / ".join(str(len(runs)) for runs in ways.values())])
    head = ["case", "wrong", "AP, vri", "LR, self-confidence", "LR, normalised margin", "without encoder"]
    return markdown_table([*head, "accuracy, vri", "LR", "without encoder", "seeds"], lines)


def _mean(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}" if values else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--only", default="", help="part of 'case, way, seed' of the runs to do, such as 'worse, vri'")
    parser.add_argument("--without-encoder", action="store_true", help="also train small CNNs")
    parser.add_argument("--table", action="store_true", help="write the table to docs/encoders.md")
    options = parser.parse_args()
    if options.table:
        text = f"Written by `python benchmarks/encoders.py --table`.\n\n{table()}"
        replace_block(PAGE, "encoders", text, "Encoders")
        return
    torch.set_num_threads(1)
    settings = [
        {"case": case, "seed": seed, "way": way}
        for seed in range(options.seeds)
        for case in CASES
        for way in (VRI, LR, PLAIN)
        if options.only in f"{case}, {way}, {seed}" and (way != PLAIN or options.without_encoder or "news" in case)
    ]
    fill(RUNS, settings, measure, lambda row: f"{row['settings']} {row['ap']}", minutes=options.minutes)


if __name__ == "__main__":
    main()
