"""`vri train`."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported where it is needed, to keep `vri --help` quick
    from vri.paper.settings import Settings

# the settings that have their own option; all others are given as key=value
_OPTIONS: dict[str, tuple[type, str]] = {
    "dataset": (str, "a name of `vri data list`, a folder of images by class, or a CSV manifest"),
    "root": (str, "folder with the data set's files"),
    "noise": (str, "none, uniform, flip, pair, instance, open-uniform, open-pair, human labels, or a noise.npz"),
    "rate": (float, "share of noise, 0 to 1"),
    "method": (str, "how to train: see `vri methods`"),
    "backbone": (str, "resnet32, ...; timm:NAME, torchvision:NAME or module:path.to.factory"),
    "weights": (str, "file with ImageNet weights, for resnet50"),
    "epochs": (int, "passes through the training set"),
    "limit": (int, "train on this many samples only"),
    "seed": (int, "of split, noise, initial weights and order"),
    "precision": (str, "fp32, bf16, or auto: bf16 where the device has instructions for it"),
    "device": (str, "auto, cpu or cuda"),
}


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "train",
        help="train a classifier on data with wrong labels",
        description="Train a classifier on data with wrong labels; settings come from a file, options, or key=value.",
        epilog="Example: vri train --dataset cifar10 --noise flip --rate 0.4 --backbone resnet32 --out runs/a. "
        "On several GPUs: torchrun --nproc-per-node 8 -m vri train ...",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="config.toml key=value",
        help="a TOML file, or one that comes with vri (see --list); any setting, those of the method as options.KEY=",
    )
    for name, (kind, text) in _OPTIONS.items():
        parser.add_argument(f"--{name}", type=kind, help=text, metavar=name.upper())
    parser.add_argument("--out", type=Path, help="folder for everything that the run writes")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--sync-batchnorm", action="store_true", help="under torchrun: BatchNorm over all workers")
    parser.add_argument("--list", action="store_true", help="list the configurations that come with vri")
    parser.set_defaults(run=_run, resumes=True)


def _run(options: argparse.Namespace) -> int:
    from vri.paper import settings
    from vri.training import distributed as parallel

    if options.list:
        for name, path in settings.configs().items():
            print(f"{name:<32} {path.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}")
        return 0
    with parallel.workers():
        try:
            return _train(options)
        except parallel.FailedElsewhere:  # the first worker says why
            return 2
        except parallel.WorkerLost as error:
            print(f"vri train: {error}", file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(2)  # the threads of a broken process group may abort a process that exits normally
        except KeyboardInterrupt:
            if parallel.first():
                raise
            return 130


def _train(options: argparse.Namespace) -> int:
    from vri.paper.training_run import train_run
    from vri.training import distributed as parallel

    chosen = parallel.on_first(lambda: _settings(options))
    record = train_run(
        chosen, options.out, resume=options.resume, progress=not options.quiet, sync_batchnorm=options.sync_batchnorm
    )
    if parallel.first():
        print(_summary(record, options.out), file=sys.stdout)
    return 0


def _settings(options: argparse.Namespace) -> "Settings":
    from vri.paper import settings
    from vri.paper.training_run import read_record

    if options.out is None:
        raise ValueError("--out is missing: expected a folder for all that the run leaves, such as --out runs/a")
    files, assignments = [w for w in options.words if "=" not in w], [w for w in options.words if "=" in w]
    if len(files) > 1:
        raise ValueError(f"{', '.join(files)}: expected one configuration, and settings as key=value")
    config = files[0] if files else None
    given = {name: getattr(options, name) for name in _OPTIONS}
    asked = config is not None or assignments or any(value is not None for value in given.values())
    found = read_record(options.out) if options.resume else None
    if asked or found is None:
        return settings.resolve(config, given, assignments)
    return settings.Settings(**found["settings"])


def _summary(record: dict[str, Any], out: Path) -> str:
    chosen = record["settings"]
    noise = "labels as they are" if record["noise_rate"] is None else f"{record['noise_rate']:.1%} of labels wrong"
    lines = [
        f"{chosen['method']} on {chosen['dataset']} ({noise}), {record['backbone']}, {len(record['epochs'])} epochs"
    ]
    if record["last"] is not None:
        lines.append(
            f"test accuracy {100 * record['last']:.2f} % in the last epoch, "
            f"{100 * record['last_10_mean']:.2f} % on average over the last {min(10, len(record['epochs']))}"
        )
    lines.append(f"{record['seconds']:.0f} s, {record['peak_memory_mb']:.0f} MB; everything is in {out}/")
    return "\n".join(lines)
