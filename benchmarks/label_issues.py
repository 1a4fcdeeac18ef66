"""How well the network alone finds wrong labels: VRI beside cleanlab, on real data with synthetic and human noise.

    python benchmarks/label_issues.py --seeds 3 --minutes 60     # resumes where it was stopped
    python benchmarks/label_issues.py --table                    # docs/label_issues.md

Each case and seed is a line of benchmarks/results/label_issues.jsonl. cleanlab is given out-of-sample probabilities
(5 folds) of the same network trained with cross-entropy, learning rate and weight decay chosen for each case by the
accuracy on the held-out samples' given labels, which is what its users can see; and those of VRI as well. Cases with
files that are not there are left out: NoisyAG-News (--news FILE.csv with the columns text, label, gt) and CIFAR-10N
(--features FILE.npz: x, y, and one array of labels a kind, written by --make-features RUN, a `vri train` run on another
part of CIFAR-10).
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cleanlab.count import compute_confident_joint, estimate_latent  # type: ignore[import-untyped]
from cleanlab.filter import find_label_issues  # type: ignore[import-untyped]
from cleanlab.rank import get_label_quality_scores  # type: ignore[import-untyped]
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from table import RESULTS, Row, fill, read
from vri import VRIClassifier, backbones, data, noise
from vri.paper.report import markdown_table, replace_block

RUNS = RESULTS / "label_issues.jsonl"
OPEN_RUNS = RESULTS / "open_set.jsonl"
PAGE = Path(__file__).parent.parent / "docs" / "label_issues.md"
GRID = ((0.02, 5e-3), (0.05, 5e-4))  # of cross-entropy: learning rate, weight decay
OPEN = ("digits", "fashion-mnist")
OPEN_COLUMNS = ("auroc", "named", "precision", "recall", "auroc_of_quality")
CLEANLAB = ("self_confidence", "normalized_margin")
PIECES = (
    "vri",
    "probability",
    "trust",
    "disagreement",
    "vri and trust",
    "vri and disagreement",
    "vri, 5 folds",
    "self_confidence of vri",
)
SYNTHETIC = {"flip": 0.4, "uniform": 0.6, "instance": 0.4}
CASES = [
    *(f"{name}, {kind}" for name in ("digits", "fashion-mnist") for kind in SYNTHETIC),
    "digits, uniform 20 %",
    "fashion-mnist, flip 20 %",
    *(f"cifar10n features, {kind}" for kind in ("worse", "random1", "aggre")),
    "noisy ag-news, human",
    "noisy ag-news, uniform",
]

FOLDED = (  # out-of-sample scores of VRI are slow: one seed of these
    *(f"digits, {kind}" for kind in SYNTHETIC),
    "cifar10n features, worse",
)

Case = tuple[Any, NDArray[np.int64], NDArray[np.int64]]  # inputs, given labels, true labels


def load(name: str, seed: int, news: Path | None, features: Path | None) -> Case | None:
    dataset, kind = name.split(", ")
    if dataset == "cifar10n features":
        if features is None:
            return None
        arrays = np.load(features)
        return arrays["x"], arrays[kind].astype(np.int64), arrays["y"].astype(np.int64)
    if dataset == "noisy ag-news":
        if news is None:
            return None
        x, given, y = read_news(news)
        return x, given if kind == "human" else corrupt(None, y, "uniform", 0.4, 4, seed), y
    images = data.load(dataset)
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(len(images.train_y), generator=generator)[:10_000]
    x, labels = images.train_x[index].float().flatten(1) / 255, images.train_y[index]
    rate = 0.2 if kind.endswith("20 %") else SYNTHETIC[kind]
    return x.numpy(), corrupt(x, labels.numpy(), kind.split()[0], rate, 10, seed), labels.numpy()


def corrupt(x: Any, y: NDArray[np.int64], kind: str, rate: float, classes: int, seed: int) -> NDArray[np.int64]:
    drawn = noise.NOISES[kind](x, torch.from_numpy(y), num_classes=classes, rate=rate, seed=seed)
    labels: NDArray[np.int64] = drawn.labels.numpy()
    return labels


def read_news(path: Path) -> Case:
    import pandas as pd
    from sklearn.feature_extraction.text import TfidfVectorizer

    frame = pd.read_csv(path)
    vectors = TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=50_000, ngram_range=(1, 2))
    given, true = (np.asarray(frame[column], np.int64) for column in ("label", "gt"))
    return vectors.fit_transform(frame["text"]), given, true


def measure(settings: Row, news: Path | None, features: Path | None) -> Row | None:
    name, seed = settings["case"], settings["seed"]
    case = load(name, seed, news, features)
    if case is None:
        return None
    warnings.simplefilter("ignore")
    x, given, true = case
    wrong = given != true
    found: dict[str, Any] = {"samples": len(given), "wrong": float(wrong.mean()), "scores": {}, "seconds": {}}

    def note(name: str, quality: NDArray[Any]) -> None:
        found["scores"][name] = {
            "ap": float(average_precision_score(wrong, -quality)),
            "auroc": float(roc_auc_score(wrong, -quality)),
        }

    def fit(name: str, **settings: Any) -> VRIClassifier:
        start = time.perf_counter()
        fitted = VRIClassifier(random_state=seed, evidence="network", **settings).fit(x, given)
        found["seconds"][name] = time.perf_counter() - start
        return fitted

    ours = fit("vri")
    note("vri", ours.label_quality_)
    note("probability", ours.evidence_["probability"])
    note("trust", ours.evidence_["trust"])
    note("disagreement", -ours.evidence_["disagreement"])
    odds = np.log(ours.label_quality_ + 1e-9) - np.log(1 - ours.label_quality_ + 1e-9)
    note("vri and trust", odds + np.log(ours.evidence_["trust"] + 1e-9))
    note("vri and disagreement", odds - 0.3 * np.sqrt(ours.evidence_["disagreement"]))
    frame = ours.find_label_issues()
    issues = frame.is_label_issue.to_numpy()
    exact = np.array([[np.mean(given[true == i] == j) for j in range(len(ours.classes_))] for i in np.unique(true)])
    found |= {
        "accuracy": float((ours.predict(x) == true).mean()),
        "named": float(issues.mean()),
        "precision": float(wrong[issues].mean()) if issues.any() else None,
        "recall": float(issues[wrong].mean()),
        "suggestions": float((frame.predicted_label.to_numpy() == true)[issues & wrong].mean()),
        "noise_rate": ours.noise_rate_,
        "interval": list(ours.noise_rate_interval_),
        "transition_error": float(np.abs(ours.transition_matrix_ - exact).sum(1).mean() / 2),
    }
    if seed == 0 and name in FOLDED:
        folds = fit("vri, 5 folds", cross_fit=5)
        note("vri, 5 folds", folds.label_quality_)
        for method in CLEANLAB:
            note(f"{method} of vri", get_label_quality_scores(given, folds.out_of_sample_proba_, method=method))
    plain = [
        fit(f"cross-entropy {lr}", cross_fit=5, method="cross-entropy", lr=lr, weight_decay=decay) for lr, decay in GRID
    ]
    best = max(plain, key=lambda clf: float((clf.out_of_sample_proba_.argmax(1) == given).mean()))
    found["cross_entropy"] = {"lr": best.lr, "weight_decay": best.weight_decay}
    for method in CLEANLAB:
        note(method, get_label_quality_scores(given, best.out_of_sample_proba_, method=method))
    joint = compute_confident_joint(given, best.out_of_sample_proba_)
    _, noise_matrix, _ = estimate_latent(joint, given)
    found["cleanlab_noise_rate"] = float(estimate_noise(joint))
    found["cleanlab_transition_error"] = float(np.abs(noise_matrix.T - exact).sum(1).mean() / 2)
    named = find_label_issues(given, best.out_of_sample_proba_)
    found["cleanlab_precision"] = float(wrong[named].mean()) if named.any() else None
    found["cleanlab_recall"] = float(named[wrong].mean())
    return found


def estimate_noise(joint: NDArray[Any]) -> float:
    return 1.0 - float(np.trace(joint)) / float(joint.sum())


def measure_open_set(settings: Row) -> Row:
    """Images of the last two classes among the first eight, with labels at random: a sixth of all."""
    warnings.simplefilter("ignore")
    images, seed = data.load(settings["dataset"]), settings["seed"]
    generator = np.random.default_rng(seed)
    x, y = images.train_x.float().flatten(1).numpy() / 255, images.train_y.numpy()
    known = generator.permutation(np.flatnonzero(y < 8))[:5000]
    strange = generator.permutation(np.flatnonzero(y >= 8))[: len(known) // 5]
    rows = generator.permutation(np.concatenate([known, strange]))
    outside = y[rows] >= 8
    labels = np.where(outside, generator.integers(0, 8, len(rows)), y[rows])
    clf = VRIClassifier(random_state=seed, evidence="network").fit(x[rows], labels)
    named = clf.outlier_score_ > 0.5
    return {
        "auroc": float(roc_auc_score(outside, clf.outlier_score_)),
        "named": float(named.mean()),
        "precision": float(outside[named].mean()) if named.any() else None,
        "recall": float(named[outside].mean()),
        "auroc_of_quality": float(roc_auc_score(outside, -clf.label_quality_)),
    }


def make_features(run: Path, path: Path) -> None:
    """Features of 10,000 images of CIFAR-10 that the network of `run` was not trained on, with their human labels."""
    from safetensors.torch import load_file

    from vri.paper.prepare import prepare
    from vri.paper.settings import Settings

    record = json.loads((run / "record.json").read_text())
    prepared = prepare(Settings(**record["settings"]))
    images = data.load("cifar10n")
    model = backbones.resnet32(num_classes=10)
    model.load_state_dict(load_file(run / "classifier.safetensors"))
    seen = torch.cat([prepared.split["train"], prepared.split["clean"]]).numpy()
    rest = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(50_000), seen))[:10_000]
    features: list[torch.Tensor] = []
    [*_, last] = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    last.register_forward_pre_hook(lambda _, args: features.append(args[0]))
    assert prepared.test_transform is not None
    with torch.no_grad():
        for part in torch.from_numpy(rest).split(500):
            model.eval()(prepared.test_transform(images.train_x[part], 0))
    labels = {name: values[rest].numpy() for name, values in images.human_labels.items()}
    arrays = {"x": torch.cat(features).numpy(), "y": images.train_y[rest].numpy(), **labels}
    np.savez(path, **arrays)  # type: ignore[arg-type]


def table() -> str:
    found: dict[str, list[dict[str, Any]]] = {}
    for record in read(RUNS):
        found.setdefault(record["case"], []).append(record)
    cases = [name for name in CASES if name in found]

    def cell(name: str, value: Callable[[dict[str, Any]], float | None], digits: int = 3) -> str:
        values = [v for v in map(value, found[name]) if v is not None]
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.{digits}f}{spread}" if values else "–"

    def score(kind: str, measure: str) -> Callable[[dict[str, Any]], float | None]:
        return lambda record: record["scores"].get(kind, {}).get(measure)

    def best(measure: str) -> Callable[[dict[str, Any]], float]:
        return lambda record: max(float(record["scores"][m][measure]) for m in CLEANLAB)

    def mean(name: str, value: Callable[[dict[str, Any]], float]) -> float:
        return statistics.mean(map(value, found[name]))

    gaps = [mean(name, lambda r: r["scores"]["vri"]["ap"]) - mean(name, best("ap")) for name in cases]
    seeds = sorted({len(records) for records in found.values()})
    lines = [
        "## The network alone",
        "",
        "Written by `python benchmarks/label_issues.py --table` from `benchmarks/results/label_issues.jsonl`.",
        "",
        "This compares VRI's network with itself trained plainly, not with other models. Nothing is trusted. "
        '`VRIClassifier(evidence="network", random_state=seed)` on inputs as they are; quality by '
        "one network, trained on the labels it judges. cleanlab gets out-of-sample probabilities (5 folds) of the same "
        "network trained with cross-entropy, learning rate and weight decay the best of "
        f"{', '.join(map(str, GRID))} on held-out given labels, and the better of its scores self_confidence and "
        "normalized_margin for each run, chosen with the truth in sight. "
        f"{' to '.join(map(str, {seeds[0]: 0, seeds[-1]: 0}))} seeds; human labels are the same in each.",
        "",
        f"**Average precision: ahead of cleanlab in {sum(gap > 0 for gap in gaps)} of {len(gaps)} cases; at worst "
        f"{min(gaps):+.3f}.**",
        "",
        markdown_table(
            ["case", "wrong", "AP, vri", "AP, cleanlab", "difference", "AUROC, vri", "AUROC, cleanlab"],
            [
                [
                    name,
                    f"{mean(name, lambda r: r['wrong']):.1%}",
                    cell(name, score("vri", "ap")),
                    cell(name, best("ap")),
                    f"{gap:+.3f}",
                    cell(name, score("vri", "auroc")),
                    cell(name, best("auroc")),
                ]
                for name, gap in zip(cases, gaps, strict=True)
            ],
        ),
        "",
        "### What the quality is made of",
        "",
        "Average precision of each piece of evidence by itself, and of combinations. `vri` is what `label_quality_` "
        "is: the lift and the transitions (`vri.quality.judge`) of the classifier's probabilities. Trust is the "
        "posterior "
        "mean of the rectifying vector at the given label, disagreement KL(q(v | x, y) ‖ p(v | x)): without clean "
        "samples the meta networks learn from samples that the classifier itself was sure of, and know nothing that "
        "it doesn't. Out-of-sample scores (5 folds, one seed of some cases) cost six times as much, and each network "
        "sees less "
        "data.",
        "",
        markdown_table(
            ["case", *PIECES],
            [[name, *(cell(name, score(piece, "ap")) for piece in PIECES)] for name in cases],
        ),
        "",
        "### Which labels are named, how many are wrong, how they got confused",
        "",
        "Issues are named with `precision=0.8`, at least about which share of them should be wrong. The error of the "
        "transition matrix is the mean total variation distance of its rows. cleanlab's issues, noise rate and matrix "
        "are those of `find_label_issues` and its confident joint.",
        "",
        markdown_table(
            [
                "case",
                "precision",
                "recall",
                "cleanlab's",
                "right suggestion",
                "wrong labels",
                "estimate",
                "interval",
                "cleanlab's",
                "matrix error",
                "cleanlab's",
            ],
            [
                [
                    name,
                    cell(name, lambda r: r["precision"], 2),
                    cell(name, lambda r: r["recall"], 2),
                    f"{cell(name, lambda r: r['cleanlab_precision'], 2)}, "
                    f"{cell(name, lambda r: r['cleanlab_recall'], 2)}",
                    cell(name, lambda r: r["suggestions"], 2),
                    f"{mean(name, lambda r: r['wrong']):.1%}",
                    f"{mean(name, lambda r: r['noise_rate']):.1%}",
                    f"{mean(name, lambda r: r['interval'][0]):.0%} to {mean(name, lambda r: r['interval'][1]):.0%}",
                    f"{mean(name, lambda r: r['cleanlab_noise_rate']):.1%}",
                    cell(name, lambda r: r["transition_error"], 2),
                    cell(name, lambda r: r["cleanlab_transition_error"], 2),
                ]
                for name in cases
            ],
        ),
    ]
    lines += [
        "",
        "**Where it fails.** The CIFAR-10N features are those of a ResNet-32 that is right on 59 % of new images: a "
        "classifier on them takes its own errors for wrong labels, names far too many and overestimates the noise, as "
        "cleanlab does with it. Human labels of news are wrong where the texts themselves mislead: the classifier "
        "learns the same mistakes, the ranking is still good, but the estimate of the noise is far too low. Look at "
        "the page before believing the number; some trusted labels help.",
    ]
    open_sets = {name: [row for row in read(OPEN_RUNS) if row["dataset"] == name] for name in OPEN}
    lines += [
        "",
        "### Samples of no class",
        "",
        "Images of two classes among those of the other eight, with labels at random, a sixth of all. "
        "`outlier_score_` tells them from the rest whatever their label; above 0.5 the page says so.",
        "",
        markdown_table(
            ["data", "AUROC", "above 0.5", "of these from outside", "of those from outside", "AUROC of label_quality"],
            [
                [name, *(f"{statistics.mean(r[key] for r in rows):.3f}" for key in OPEN_COLUMNS)]
                for name, rows in open_sets.items()
                if rows
            ],
        ),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--news", type=Path)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--make-features", type=Path)
    parser.add_argument("--only", default="", help="cases with one of these, with commas between, in their names")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.make_features:
        make_features(options.make_features, options.features)

    def wanted(name: str) -> bool:
        return any(part in name for part in options.only.split(","))

    if options.seeds:
        cases = [{"case": name, "seed": seed} for seed in range(options.seeds) for name in CASES if wanted(name)]
        fill(
            RUNS,
            cases,
            partial(measure, news=options.news, features=options.features),
            lambda r: f"{r['case']} seed {r['seed']}: { ({k: round(v['ap'], 3) for k, v in r['scores'].items()}) }",
            processes=options.jobs,
            minutes=options.minutes,
        )
        sets = [{"dataset": name, "seed": seed} for seed in range(options.seeds) for name in OPEN if wanted(name)]
        fill(
            OPEN_RUNS,
            sets,
            measure_open_set,
            lambda r: f"open set, {r['dataset']} seed {r['seed']}: AUROC {r['auroc']:.3f}",
            processes=options.jobs,
            minutes=options.minutes,
        )
    if options.table:
        replace_block(PAGE, "label_issues", table(), "How well wrong labels are found")
