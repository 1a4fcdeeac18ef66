"""`vri data list`, `vri data get` and `vri data check`."""

import argparse
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("data", help="list, get and check data sets")
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")

    listing = actions.add_parser("list", help="the data sets, and where each was found")
    listing.add_argument("--root", type=Path, help="folder to look in first")
    listing.set_defaults(run=_list)

    getting = actions.add_parser("get", help="fetch a data set; an interrupted download resumes")
    getting.add_argument("name", help="as in `vri data list`")
    getting.add_argument("--root", type=Path, help="folder to put it in (default: $VRI_DATA or ~/.cache/vri)")
    getting.set_defaults(run=_get, resumes=True)

    checking = actions.add_parser("check", help="check a data set file by file; exit code 1 if one is not ok")
    checking.add_argument("name", help="as in `vri data list`")
    checking.add_argument("--root", type=Path, help="look in this folder only")
    checking.set_defaults(run=_check)


def _list(options: argparse.Namespace) -> int:
    from vri.data.catalogue import CATALOGUE

    rows = [("name", "classes", "images", "found in")]
    for name, entry in CATALOGUE.items():
        where = entry.find(options.root)
        rows.append((name, str(entry.num_classes), entry.description, str(where) if where else "not found"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _get(options: argparse.Namespace) -> int:
    from vri.data.catalogue import get

    source = get(options.name, options.root, say=lambda line: print(line, file=sys.stderr, flush=True))
    print(f"{options.name}: {source}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from vri.data.catalogue import check

    checks = check(options.name, options.root)
    for each in checks:
        print(f"{each.status:8}{each.path}" + (f": {each.reason}" if each.reason else ""))
    return 0 if all(each.ok for each in checks) else 1
