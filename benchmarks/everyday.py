"""How well labels are judged on everyday data: VRIClassifier with its defaults beside cleanlab with usual models.

    python benchmarks/everyday_data.py                     # fetch the data, once
    python benchmarks/everyday.py --half report            # resumes where it was stopped
    python benchmarks/everyday.py --table                  # docs/label_issues.md

Half of the data sets were used to choose how VRIClassifier judges ("choose"), the other half only to report on
("report"); which is which follows from their names, see `Case.half`. Each case, seed and rival is a line of
benchmarks/results/everyday.csv. cleanlab gets out-of-sample probabilities (5 folds) of logistic regression (LR) on
standardised inputs, gradient boosting (HGB), extremely randomised trees (ET) and, on texts, naive Bayes (NB), all with
scikit-learn's defaults; with `--who network`, of our own network trained with cross-entropy. Gaps are filled with the
median. The score is the better of self_confidence and normalized_margin, chosen with the truth in sight. Accuracy is on
test samples with right labels: for cleanlab, that of CleanLearning. `accuracy_trusted` is with ten trusted samples of
each class, whose labels CleanLearning gets corrected; with seed 0 alone. Seconds are of the processor, from the labels
to a classifier that learned from what was found. HGB is left out on texts, on images and with 50 classes or more.
"""

import argparse
import fcntl
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

import everyday_data
from everyday_data import Case, Data
from vri import VRIClassifier
from vri.paper.report import markdown_table, replace_block

RESULTS = Path(__file__).parent / "results" / "everyday.csv"
PAGE = Path(__file__).parent.parent / "docs" / "label_issues.md"
OURS, RIVALS = "vri", ("LR", "HGB", "ET", "NB", "network")
FOLDS, TRUSTED = 5, 10
Labels = NDArray[np.int64]
Row = dict[str, Any]


# measuring


def measure(case: Case, seed: int, who: str, data: Data) -> Row:
    wrong = data.given != data.true
    classes = int(max(data.true.max(), data.given.max())) + 1
    row: Row = {
        "half": case.half,
        "case": case.name,
        "noise": case.noise,
        "seed": seed,
        "who": who,
        "rows": len(wrong),
        "columns": data.x.shape[1],
        "classes": classes,
        "wrong": wrong.mean(),
    }
    corrected, trusted = _trusted(data, classes, seed)
    if who == OURS:
        return row | _ours(data, wrong, corrected, trusted, seed)
    return row | _cleanlab(data, wrong, corrected, classes, who, seed)


def _trusted(data: Data, classes: int, seed: int) -> tuple[Labels, NDArray[np.bool_]]:
    """Labels of which ten of each class are known to be right, and which these are."""
    generator = np.random.default_rng(seed)
    trusted = np.zeros(len(data.true), bool)
    for k in range(classes):
        own = generator.permutation(np.flatnonzero(data.true == k))
        trusted[own[:TRUSTED]] = True
    return np.where(trusted, data.true, data.given), trusted


def _ours(data: Data, wrong: Any, corrected: Labels, trusted: Any, seed: int) -> Row:
    start = time.process_time()
    model = VRIClassifier(random_state=seed).fit(data.x, data.given)
    seconds = time.process_time() - start
    accuracy = float((model.predict(data.test_x) == data.test_y).mean())
    helped = VRIClassifier(random_state=seed).fit(data.x, corrected, trusted=trusted) if seed == 0 else None
    low, high = model.noise_rate_interval_
    return {
        "ap": average_precision_score(wrong, 1 - model.label_quality_),
        **_named(model.find_label_issues()["is_label_issue"].to_numpy(), wrong),
        "rate": model.noise_rate_,
        "low": low,
        "high": high,
        "accuracy": accuracy,
        "accuracy_trusted": float((helped.predict(data.test_x) == data.test_y).mean()) if helped else np.nan,
        "seconds": seconds,
        "evidence": json.dumps({name: round(weight, 3) for name, weight in model.evidence_weights_.items()}),
    }


def _cleanlab(data: Data, wrong: Any, corrected: Labels, classes: int, who: str, seed: int) -> Row:
    from cleanlab.classification import CleanLearning  # type: ignore[import-untyped]
    from cleanlab.rank import get_label_quality_scores  # type: ignore[import-untyped]
    from sklearn.model_selection import StratifiedKFold

    make = _model(who, data, seed)
    start = time.process_time()
    probabilities = np.zeros((len(data.given), classes))
    splitter = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    for rows, held in splitter.split(np.zeros(len(data.given)), data.given):
        model = make().fit(data.x[rows], data.given[rows])
        probabilities[np.ix_(held, model.classes_)] = model.predict_proba(data.x[held])
    scores = [
        average_precision_score(wrong, 1 - get_label_quality_scores(data.given, probabilities, method=method))
        for method in ("self_confidence", "normalized_margin")
    ]
    judge = CleanLearning(make(), seed=seed)
    issues = judge.find_label_issues(labels=data.given, pred_probs=probabilities)
    judge.fit(data.x, data.given, label_issues=issues)
    seconds = time.process_time() - start
    row = {
        "ap": max(scores),
        "ap_self_confidence": scores[0],
        **_named(issues["is_label_issue"].to_numpy(), wrong),
        "rate": float(1 - np.trace(judge.confident_joint) / judge.confident_joint.sum()),
        "accuracy": float((judge.predict(data.test_x) == data.test_y).mean()),
        "seconds": seconds,
    }
    if seed == 0 and who != "network":
        helped = CleanLearning(make(), seed=seed)
        issues = helped.find_label_issues(labels=corrected, pred_probs=probabilities)
        helped.fit(data.x, corrected, label_issues=issues)
        row["accuracy_trusted"] = float((helped.predict(data.test_x) == data.test_y).mean())
    return row


def _named(named: Any, wrong: Any) -> Row:
    return {
        "named": float(named.mean()),
        "precision": float(wrong[named].mean()) if named.any() else np.nan,
        "recall": float(named[wrong].mean()),
    }


def _model(who: str, data: Data, seed: int) -> Callable[[], Any]:
    from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    scaler = FunctionTransformer if hasattr(data.x, "tocsr") else StandardScaler  # TF-IDF is used as it is
    fill = SimpleImputer(strategy="median", keep_empty_features=True)
    models: dict[str, Callable[[], Any]] = {
        "LR": lambda: make_pipeline(fill, scaler(), LogisticRegression(max_iter=300)),
        "HGB": lambda: HistGradientBoostingClassifier(random_state=seed),
        "NB": MultinomialNB,
        "ET": lambda: make_pipeline(fill, ExtraTreesClassifier(random_state=seed)),
        "network": lambda: make_pipeline(
            fill, VRIClassifier(method="cross-entropy", evidence="network", random_state=seed)
        ),
    }
    return models[who]


def possible(case: Case, data: Data, who: str) -> bool:
    if who == "HGB":
        classes = int(data.true.max()) + 1
        return not hasattr(data.x, "tocsr") and data.x.shape[1] * classes < 3000 and classes < 50
    return who != "NB" or hasattr(data.x, "tocsr")


# results


def done() -> pd.DataFrame:
    if not RESULTS.exists():
        return pd.DataFrame({"case": [], "seed": [], "who": []})
    return pd.read_csv(RESULTS)


def note(row: Row) -> None:
    """Add a line; columns that are new are added to all."""
    with RESULTS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        table = pd.concat([done(), pd.DataFrame([row])], ignore_index=True)
        new = RESULTS.with_suffix(".new")
        table.to_csv(new, index=False, float_format="%.5g")
        new.rename(RESULTS)
    RESULTS.with_suffix(".lock").unlink(missing_ok=True)


def run(halves: list[str], seeds: int, everyone: list[str], rows: int) -> None:
    warnings.filterwarnings("ignore")
    for seed in range(seeds):
        for case in sorted(everyday_data.available(), key=lambda case: case.rows):
            if case.half not in halves or seed >= case.seeds or case.rows > rows:
                continue
            data = None
            for who in everyone:
                table = done()
                if ((table["case"] == case.name) & (table["seed"] == seed) & (table["who"] == who)).any():
                    continue
                data = everyday_data.load(case, seed) if data is None else data
                if possible(case, data, who):
                    row = measure(case, seed, who, data)
                    note(row)
                    print(case.name, seed, who, f"ap {row['ap']:.3f}, {row['seconds']:.0f} s", flush=True)


# the page


def page() -> str:
    table = done()
    parts = [
        "Written by `python benchmarks/everyday.py --table` from `benchmarks/results/everyday.csv`.",
        *(_half(table[table["half"] == half], half) for half in ("report", "choose")),
    ]
    return "\n\n".join(parts)


def _half(table: pd.DataFrame, half: str) -> str:
    rows, differences, covered, gains, gains_trusted, slower = [], [], [], [], [], []
    for name in table["case"].unique().tolist():
        own = table[table["case"] == name]
        by_seed = own.pivot(index="seed", columns="who", values="ap")
        rivals = [who for who in RIVALS if who in by_seed]
        if OURS not in by_seed or "LR" not in by_seed:
            continue
        # the rival that is best for the case, with the truth in sight, on the seeds that both have
        behind = by_seed[rivals].rsub(by_seed[OURS], axis=0)
        best = behind.mean().idxmin()
        seeds = behind[best].notna()
        ours, theirs = by_seed.loc[seeds, OURS].mean(), by_seed.loc[seeds, best].mean()
        differences.append(ours - theirs)
        mine = own[own["who"] == OURS]
        covered += list((mine["low"] <= mine["wrong"]) & (mine["wrong"] <= mine["high"]))
        helped = own[own["seed"].isin(mine.loc[mine["accuracy_trusted"].notna(), "seed"])]  # seeds that all have
        accuracy = own.groupby("who")[["accuracy"]].mean().join(helped.groupby("who")[["accuracy_trusted"]].mean())
        clean = accuracy.reindex(["LR", "HGB"]).max()
        gains.append(accuracy.loc[OURS, "accuracy"] - clean["accuracy"])
        gains_trusted.append(accuracy.loc[OURS, "accuracy_trusted"] - clean["accuracy_trusted"])
        seconds = own.groupby("who")["seconds"].mean()
        slower.append(seconds[OURS] / seconds.reindex(["LR", "HGB", "ET"]).sum())
        first: Any = mine.iloc[0]
        rows.append(
            [
                name,
                f"{first['rows']} × {first['columns']}, {first['classes']}",
                f"{mine['wrong'].mean():.0%} {first['noise']}",
                str(int(seeds.sum())),
                f"{ours:.3f}" + (f" ± {by_seed.loc[seeds, OURS].std():.3f}" if seeds.sum() > 1 else ""),
                f"{theirs:.3f} ({best})",
                f"{ours - theirs:+.3f}",
                f"{mine['precision'].mean():.2f}, {mine['recall'].mean():.2f}",
                f"{mine['rate'].mean():.0%} ({mine['low'].mean():.0%} to {mine['high'].mean():.0%})",
                f"{accuracy.loc[OURS, 'accuracy']:.1%}",
                f"{clean['accuracy']:.1%}",
                f"{accuracy.loc[OURS, 'accuracy_trusted']:.1%}",
                f"{clean['accuracy_trusted']:.1%}",
            ]
        )
    if not rows:
        return ""
    gaps = np.array(differences)
    head = {
        "report": "## Data that nothing was chosen on",
        "choose": "## Data that the settings were chosen on",
    }[half]
    summary = (
        f"**Average precision: {gaps.mean():+.3f} on average over {len(gaps)} cases beside each case's best rival; "
        f"at least its own less 0.01 in {(gaps >= -0.01).sum()} of {len(gaps)}; at worst {gaps.min():+.3f}.** "
        f"The interval of the share of wrong labels holds the truth in {np.mean(covered):.0%} of {len(covered)} runs. "
        f"Test accuracy beside the better of CleanLearning with LR and with HGB: {np.mean(gains):+.1%} on average, "
        f"{np.mean(gains_trusted):+.1%} with ten trusted samples of each class. "
        f"Processor time: {np.nanmedian(slower):.1f} times that of the three rivals together (median; "
        f"{np.nanmax(slower):.1f} at most)."
    )
    columns = [
        "case",
        "rows × columns, classes",
        "wrong",
        "seeds",
        "AP, vri",
        "AP, best cleanlab",
        "difference",
        "named: precision, recall",
        "estimated share (interval)",
        "accuracy",
        "CleanLearning",
        "with trusted",
        "CleanLearning",
    ]
    return f"{head}\n\n{summary}\n\n{markdown_table(columns, rows)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("choose", "report", "both"), default="report")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10**9, help="leave out cases with more")
    parser.add_argument("--who", nargs="+", choices=(OURS, *RIVALS), default=(OURS, *RIVALS[:-1]))
    parser.add_argument("--table", action="store_true", help="write the page from the results")
    options = parser.parse_args()
    if options.table:
        replace_block(PAGE, "everyday", page(), "How well wrong labels are found")
    else:
        chosen = ["choose", "report"] if options.half == "both" else [options.half]
        run(chosen, options.seeds, options.who, options.rows)
