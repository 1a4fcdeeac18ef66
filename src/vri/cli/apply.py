"""`vri apply`."""

import argparse
import sys
from pathlib import Path
from typing import Any

_AGAIN = "as for vri clean (known from its folder, if DECISIONS is in it)"


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "apply",
        help="make a corrected copy of your data from your decisions on the page of vri clean",
        description="Make a copy of SOURCE with your decisions applied; or, without any, with the surest suggestions "
        "of vri clean. SOURCE is never changed.",
        epilog="Examples: vri apply reviews.csv review.csv --label stars --out corrected; "
        "vri apply reviews.csv cleaned --auto precision=0.95 --out corrected",
    )
    parser.add_argument(
        "source", metavar="SOURCE", type=Path, help="what was cleaned: folder, table, .npz or .npy file"
    )
    parser.add_argument(
        "review",
        metavar="DECISIONS",
        type=Path,
        help="review.csv, which the page exported; or the folder that vri clean wrote, or its corrected.csv",
    )
    parser.add_argument(
        "--auto",
        type=_precision,
        metavar="precision=P",
        help="take as many suggestions, the surest first, as leave this share of them right, by vri's own estimate",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the copy")
    parser.add_argument("--label", "--labels", metavar="COLUMN", help=_AGAIN)
    parser.add_argument("--id", "--ids", metavar="COLUMN", help=_AGAIN)
    parser.add_argument("--encoding", metavar="NAME", help=_AGAIN)
    parser.add_argument("--separator", metavar="CHAR", help=_AGAIN)
    parser.add_argument("--unlabelled", nargs="?", const=True, default=False, metavar="LABEL", help=_AGAIN)
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--link",
        nargs="?",
        const="hard",
        choices=("hard", "symbolic"),
        help="link images, by hard links unless --link=symbolic (default: hard links where possible, else copies)",
    )
    way.add_argument("--copy", action="store_true", help="images as copies")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from vri.cleaning.apply import apply
    from vri.cleaning.options import SourceOptions
    from vri.cleaning.relabelled_images import AUTO, COPY

    source_options = SourceOptions(
        label=options.label,
        id=options.id,
        encoding=options.encoding,
        separator=options.separator,
        unlabelled=options.unlabelled,
    )
    way = COPY if options.copy else options.link or AUTO
    done = apply(options.source, options.review, options.out, source_options, way, options.auto)
    for note in done.notes:
        print(note, file=sys.stderr)
    print(
        f"{done.changed:,} labels changed, {done.dropped:,} samples dropped, {done.kept:,} kept as they are, "
        f"{done.untouched:,} not decided about and left as they are"
    )
    if done.left is not None:
        print(f"{done.left:,} more labels look wrong and stay as they are: their suggestions are less sure")
    print(f"wrote {done.written}")
    return 0


def _precision(text: str) -> float:
    name, _, number = text.partition("=")
    try:
        if name == "precision":
            return float(number)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not of the form precision=0.95")
