"""`vri clean`."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vri.cleaning.report import Summary

_PAIRS = 5  # confused labels that are printed

_SOURCE = {  # how to read SOURCE
    "label": (
        str,
        "COLUMN",
        "column of the labels; for .npz the name of their array (y or labels), for .npy their file",
    ),
    "features": (str, "A,B,…", "columns to learn from (all that can be used); for .npz the array (X)"),
    "text": (
        str,
        "COLUMN",
        "column of text to learn from, by TF-IDF or --encoder; for .npz and .npy an array or a file of texts that the "
        "page shows",
    ),
    "encoder": (
        str,
        "NAME",
        "learn from what a pretrained network sees in images or text: auto takes the best that is installed, as "
        "is done for images unless --backbone, --weights or --epochs is given; none; docs/encoders.md lists the others",
    ),
    "images": (str, "COLUMN|FILE", "column, array or file with paths of images for the page to show"),
    "images_root": (Path, "FOLDER", "for a .json list of images: where its paths start (its folder)"),
    "id": (str, "COLUMN", "column of ids, for .npy their file (rows are counted from 0)"),
    "trusted": (
        str,
        "FILE|COLUMN",
        "labels known to be right: a column or .npy file of true and false, or a file with one id per line",
    ),
    "encoding": (str, "NAME", "encoding of a text file (utf-8)"),
    "separator": (str, "CHAR", "between the cells of a CSV file: ';', tab or another (found by itself)"),
    "backbone": (str, "NAME", "network for images (small_cnn; resnet50 with --weights), as in vri train"),
    "image_size": (int, "N", "side of the images it sees (32; 224 with --weights)"),
    "weights": (Path, "FILE", "ImageNet weights: learn from the features of this network"),
}
_SEARCH = {  # how to look for wrong labels
    "pred_probs": (
        Path,
        "FILE",
        "train nothing, judge by these probabilities: .npy, or .csv with a column for each class by its name",
    ),
    "confidence": (float, "P", "corrected.csv takes suggestions at least this probable (0.9)"),
    "cross_fit": (
        int,
        "K",
        "judge labels by classifiers of K folds that did not see them; 0: by the data (0)",
    ),
    "epochs": (int, "N", "passes through the data (chosen by its size)"),
    "seed": (int, "N", "of all that is random (0)"),
    "device": (str, "NAME", "auto, cpu or cuda (auto)"),
    "max_suspects": (int, "N", "most samples on the page (5000)"),
    "sample": (int, "N", "for .npy: learn from N rows (from all that fit in memory), judge all"),
}
_ALSO = {"label": ["--labels"], "id": ["--ids"]}  # names that go better with a file


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "clean",
        help="find the wrong labels of your data",
        description="Find the wrong labels of a folder of images by class, a table (CSV, TSV, JSON Lines, Parquet, a "
        "Hugging Face data set on the disk), a list of images in COCO's form (.json), embeddings and labels in an "
        ".npz file, or embeddings in an .npy file, which need not fit in memory. SOURCE is never "
        "changed. Ctrl-C stops; the same command resumes.",
        epilog="Example: vri clean reviews.csv --label stars --text review --out cleaned",
    )
    parser.add_argument(
        "source", metavar="SOURCE", type=Path, help="folder root/class/image, .json list of images, table, .npz or .npy"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    for name, (kind, shown, text) in (_SOURCE | _SEARCH).items():
        parser.add_argument(_flag(name), *_ALSO.get(name, []), dest=name, type=kind, metavar=shown, help=text)
    parser.add_argument(
        "--compare", action="store_true", help="also train plainly on the given labels, and print both accuracies"
    )
    parser.add_argument(
        "--unlabelled",
        nargs="?",
        const=True,
        default=False,
        metavar="LABEL",
        help="samples without label are allowed: predicted, not judged; --unlabelled=LABEL: also those with this "
        "label, or in this folder",
    )
    parser.add_argument("--fresh", action="store_true", help="remove an earlier run in DIR and start again")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--verbose", action="store_true", help="also print how long each part took")
    parser.set_defaults(run=_run, resumes=True)


def _run(options: argparse.Namespace) -> int:
    # imported here, as --help needn't wait for it
    from vri.cleaning.options import CleanOptions, SourceOptions
    from vri.cleaning.pipeline import clean

    given = {name: getattr(options, name) for name in (*_SOURCE, *_SEARCH) if getattr(options, name) is not None}
    words = [word for name, value in given.items() for word in (_flag(name), str(value))]
    command = ["vri", "clean", str(options.source), "--out", str(options.out), *words]
    command += ["--compare"] if options.compare else []
    if options.unlabelled is not False:
        command.append("--unlabelled" if options.unlabelled is True else f"--unlabelled={options.unlabelled}")
    if "features" in given:
        given["features"] = tuple(name.strip() for name in given["features"].split(","))
    how_to_read = {name: given[name] for name in (*_SOURCE, "seed") if name in given}
    summary = clean(
        options.source,
        options.out,
        SourceOptions(unlabelled=options.unlabelled or options.unlabelled == "", **how_to_read),
        CleanOptions(compare=options.compare, **{name: given[name] for name in _SEARCH if name in given}),
        fresh=options.fresh,
        progress=not options.quiet,
        verbose=options.verbose,
        command=shlex.join(command),
    )
    print(describe(summary, options.out))
    return 0


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def describe(summary: "Summary", out: Path) -> str:
    """What was found, for people."""
    from vri.cleaning.work import contradiction

    low, high = summary.noise_interval
    doubt = contradiction(summary)
    lines = [
        f"{summary.samples:,} labels of {len(summary.classes):,} classes"
        + (f", {summary.trusted:,} of them trusted" if summary.trusted else ""),
        doubt or f"estimated to be wrong: {summary.noise_rate:.1%} (between {low:.1%} and {high:.1%})",
        f"issues found: {summary.issues:,}",
    ]
    pairs = [
        (count, given, suggested)
        for given, row in zip(summary.classes, summary.pair_counts, strict=True)
        for suggested, count in zip(summary.classes, row, strict=True)
        if count
    ]
    if pairs:
        lines.append("most often:")
        lines += [
            f"  labelled {given}, looks like {suggested}: {count:,}"
            for count, given, suggested in sorted(pairs, key=lambda pair: -pair[0])[:_PAIRS]
        ]
    if summary.accuracy_after is not None and (not doubt or summary.accuracy_before is not None):
        plain = "" if summary.accuracy_before is None else f"{summary.accuracy_before:.1%} by plain training, "
        lines.append(f"accuracy: {plain}{summary.accuracy_after:.1%} by vri (on {summary.accuracy_on})")
    streamed = (out / "label_issues").is_dir()
    kind = "/" if streamed else ".csv"
    lines += [f"look at: {remark}" for remark in summary.remarks if remark != doubt]
    trained = "classifier.safetensors, " if (out / "classifier.safetensors").exists() else ""
    lines.append(f"wrote label_issues{kind}, corrected{kind}, {trained}summary.json and report.html to {out}/")
    if streamed:
        lines.append(f"next: read {out / 'corrected'} as one Parquet table, and look at {out / 'report.html'}")
    else:
        lines.append(f"next: open {out / 'report.html'} in a browser, decide, export review.csv, and run vri apply")
    return "\n".join(lines)
