"""`vri apply`."""

import argparse
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "apply",
        help="make a corrected copy of your data from your decisions on the page of vri clean",
        description="Make a copy of SOURCE with the decisions of review.csv applied. SOURCE is never changed.",
        epilog="Example: vri apply reviews.csv review.csv --label stars --out corrected",
    )
    parser.add_argument(
        "source", metavar="SOURCE", type=Path, help="what was cleaned: folder, table, .npz or .npy file"
    )
    parser.add_argument("review", metavar="review.csv", type=Path, help="the decisions that the page exported")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the copy")
    parser.add_argument("--label", "--labels", metavar="COLUMN", help="as for vri clean")
    parser.add_argument("--id", "--ids", metavar="COLUMN", help="as for vri clean")
    parser.add_argument("--encoding", metavar="NAME", help="as for vri clean")
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
    from vri.cleaning.apply import AUTO, COPY, apply
    from vri.cleaning.options import SourceOptions

    source_options = SourceOptions(label=options.label, id=options.id, encoding=options.encoding)
    way = COPY if options.copy else options.link or AUTO
    done = apply(options.source, options.review, options.out, source_options, way)
    for note in done.notes:
        print(note, file=sys.stderr)
    print(
        f"{done.changed:,} labels changed, {done.dropped:,} samples dropped, {done.kept:,} kept as they are, "
        f"{done.untouched:,} not decided about and left as they are"
    )
    print(f"wrote {done.written}")
    return 0
