"""`vri noise`."""

import argparse
import csv
import difflib
import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from vri.data import ImageData
    from vri.noise import Noise

_CONFUSED = 5  # pairs that are printed


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("noise", help="draw wrong labels for a data set and save them in a file")
    parser.add_argument("dataset", help="its name, such as digits or cifar10")
    parser.add_argument(
        "--type",
        required=True,
        help="uniform, flip, pair, instance, open-uniform, open-pair, or a round of human labels",
    )
    parser.add_argument("--rate", type=float, help="share of noise, 0 to 1; not for human labels")
    parser.add_argument("--seed", type=int, help="of the draw (default: 0)")
    parser.add_argument("--root", type=Path, help="folder with the data set's files, if they aren't found")
    parser.add_argument("--limit", type=int, help="only the first LIMIT training samples")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("noise.npz"),
        help="file for the labels; the matrix is saved next to it as PNG and CSV",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # imported here, since they would slow down --help
    from vri import data
    from vri.files import atomic_write
    from vri.paper.plots import transition_figure

    _check(options)
    images = data.load(options.dataset, options.root)
    y = images.train_y[: options.limit]
    drawn = _draw(options, images, y)
    names, matrix = images.class_names, drawn.matrix.numpy()

    what = "labels" if drawn.seed is None else "noise"  # human, or drawn
    picture, table = io.BytesIO(), io.StringIO()
    transition_figure(picture, matrix, names, f"{images.name}: {options.type} {what}, {drawn.rate:.1%} wrong")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["true class", *names])
    writer.writerows([name, *(f"{p:.6g}" for p in row)] for name, row in zip(names, matrix.tolist(), strict=True))
    drawn.save(options.out)
    for suffix, content in ((".png", picture.getvalue()), (".csv", table.getvalue().encode())):
        with atomic_write(options.out.with_suffix(suffix)) as file:
            file.write(content)
    print(_summary(drawn, y, names, options.out))
    return 0


def _check(options: argparse.Namespace) -> None:
    """Find mistakes before the data set is read."""
    if options.rate is not None and not 0 <= options.rate <= 1:
        raise ValueError(f"--rate is {options.rate:g}; expected 0 to 1: pass a share, such as 0.4 for 40 %")
    if options.limit is not None and options.limit < 1:
        raise ValueError(f"--limit is {options.limit}; expected 1 or more samples: raise it or leave it out")
    if options.out.suffix != ".npz":
        raise ValueError(f"--out is {options.out}; expected a name that ends in .npz: rename it")


def _draw(options: argparse.Namespace, images: "ImageData", y: "Tensor") -> "Noise":
    from vri import noise
    from vri.data.sets.cifar_n import CIFAR10N, CIFAR100N

    kind, rounds = options.type, images.human_labels
    if kind in rounds:
        for name in ("rate", "seed"):
            if getattr(options, name) is not None:
                raise ValueError(f"--{name} was given with human labels, which are as they are: leave it out")
        found = noise.human(None, y, num_classes=images.num_classes, labels=rounds[kind][: options.limit])
        return replace(found, name=kind)
    if kind not in noise.NOISES:
        for known in (CIFAR10N, CIFAR100N):
            if kind in known.keys:
                raise ValueError(
                    f"--type is {kind}, a round of human labels that {images.name} does not have; "
                    f"expected a data set that has it: use {known.name}"
                )
        choices = [*noise.NOISES, *rounds]
        nearest = difflib.get_close_matches(kind, choices, n=1, cutoff=0.0)[0]
        raise ValueError(f"--type is {kind!r}; expected one of {', '.join(choices)}: did you mean {nearest!r}?")
    if kind.startswith("open-") and images.open_set is None:
        raise ValueError(f"--type is {kind}, but all images of {images.name} belong to its classes: use another type")
    if images.open_set is not None and not kind.startswith("open-"):
        raise ValueError(
            f"--type is {kind}, but some images of {images.name} belong to none of its classes: "
            "use open-uniform or open-pair"
        )
    if options.rate is None:
        raise ValueError(f"--rate is missing; {kind} noise expected a share, 0 to 1: pass --rate 0.4 for 40 %")
    drawn: Noise = noise.NOISES[kind](
        images.train_x[: options.limit], y, num_classes=images.num_classes, rate=options.rate, seed=options.seed or 0
    )
    return drawn


def _summary(drawn: "Noise", y: "Tensor", names: tuple[str, ...], out: Path) -> str:
    import torch

    classes, closed = len(names), y < len(names)
    counts = torch.bincount(y[closed] * classes + drawn.labels[closed], minlength=classes**2).view(classes, classes)
    sizes = counts.sum(1)
    counts.fill_diagonal_(0)
    lines = [
        f"{drawn.rate:.2%} of {len(y)} labels are wrong",
        f"hash of the labels: {drawn.hash}",
    ]
    if not closed.all():
        lines.append(f"{int((~closed).sum())} of them are on images of no class")
    lines.append("most confused:")
    for place in counts.flatten().argsort(descending=True, stable=True)[:_CONFUSED].tolist():
        i, j = divmod(place, classes)
        if counts[i, j]:
            lines.append(f"  {names[i]} -> {names[j]}: {counts[i, j]} ({counts[i, j] / sizes[i]:.1%} of {names[i]})")
    lines.append(f"wrote {out}, {out.with_suffix('.png').name} and {out.with_suffix('.csv').name}")
    return "\n".join(lines)
