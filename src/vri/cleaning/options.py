"""What the user chooses for `vri clean`, and what is wrong with it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vri.cleaning.arrow import is_dataset
from vri.cleaning.tables import SUFFIXES
from vri.cleaning.text_tables import CSV_SUFFIXES, JSON_SUFFIXES
from vri.data.lists import shorten

IMAGES, COCO, TABLE, ARRAYS, ROWS = "images", "coco", "table", "arrays", "rows"  # kinds of sources
MOST_CLASSES = 2_000  # the page and the matrices have a number for each pair of them

_WORDS = {
    IMAGES: "a folder of images",
    COCO: "a list of images",
    TABLE: "a {} table",
    ARRAYS: "an .npz file",
    ROWS: "an .npy file",
}
_FOR_IMAGES = ("backbone", "image_size", "weights")
_FOR_TEXT = ("encoding", "separator")  # tables in text files
_FOR_LEARNING = ("features", "encoder", *_FOR_IMAGES)  # what --pred-probs has no use for, as it trains nothing
_FOR_TRAINING = ("cross_fit", "epochs", "seed", "device", "compare", "sample")
_UNUSED = {  # options that mean nothing for a kind of source
    IMAGES: ("label", "features", "text", "images", "images_root", "id", *_FOR_TEXT),
    COCO: ("label", "features", "text", "images", "id", *_FOR_TEXT),
    TABLE: ("images_root", *_FOR_IMAGES),
    ARRAYS: ("images_root", "encoder", *_FOR_TEXT, *_FOR_IMAGES),
    ROWS: ("images_root", "features", "encoder", *_FOR_TEXT, *_FOR_IMAGES),
}


@dataclass(frozen=True)
class SourceOptions:
    """How to read a source; options that don't apply to its kind must be None.

    Attributes:
        label: column of the labels; for .npz the name of their array (y or labels by default), for .npy their file.
        features: columns to learn from; for .npz the one name of the embeddings (X, embeddings or features).
        text: column of text, read by TF-IDF or an encoder; for embeddings an array or a file of texts, which only the
            page shows.
        encoder: name of a pretrained encoder of images or text, as in `vri.encoders.load`, or "none"; by default the
            best that is installed for images, and none for text.
        images: column, array or file of paths of images, which only the page shows.
        images_root: folder that the paths in a list of images start from; by default that of the list.
        id: column, array or .npy file of ids; if not given, rows are counted from 0.
        trusted: whose labels are known to be right: a column, array or .npy file of true and false, or a file with
            one id per line.
        encoding: of a CSV or JSON Lines file; UTF-8 by default.
        separator: between the cells of a CSV file; found from its first rows by default.
        backbone: network for images; `small_cnn` by default, `resnet50` with weights.
        image_size: side of the images the network sees; 32 by default, 224 with weights.
        weights: file of weights; the network is then not trained, and its features are the embeddings.
        unlabelled: whether labels may be missing; they are predicted, not judged. A text is a label (for images the
            folder of a class) that also stands for none.
        seed: of the initial weights.
    """

    label: str | None = None
    features: tuple[str, ...] | None = None
    text: str | None = None
    encoder: str | None = None
    images: str | None = None
    images_root: Path | None = None
    id: str | None = None
    trusted: str | None = None
    encoding: str | None = None
    separator: str | None = None
    backbone: str | None = None
    image_size: int | None = None
    weights: Path | None = None
    unlabelled: bool | str = False
    seed: int = 0


@dataclass(frozen=True)
class CleanOptions:
    """How to look for wrong labels.

    Attributes:
        confidence: suggested labels at least this probable go into corrected.csv.
        cross_fit: how many folds, so that labels are judged by classifiers that were not trained on them; 0 lets the
            size and kind of the data decide.
        epochs: passes through the data; if None, chosen by its size.
        seed: of everything random.
        device: auto, cpu, cuda or another name of torch.
        max_suspects: most samples on the page.
        compare: also train plainly on the given labels, to compare accuracies.
        sample: rows of an .npy file to learn from; by default all of them, if they fit in memory.
        pred_probs: file of probabilities to judge by, see `read_probabilities`; nothing is trained then.
    """

    confidence: float = 0.9
    cross_fit: int = 0
    epochs: int | None = None
    seed: int = 0
    device: str = "auto"
    max_suspects: int = 5000
    compare: bool = False
    sample: int | None = None
    pred_probs: Path | None = None


def checked_device(options: CleanOptions, source_options: SourceOptions) -> torch.device:
    """The device to train on; all mistakes in the options are reported at once."""
    checks = {
        "confidence": (0 <= options.confidence <= 1, "0 to 1"),
        "cross_fit": (options.cross_fit == 0 or options.cross_fit >= 2, "2 or more, or 0 for none"),
        "epochs": (options.epochs is None or options.epochs >= 2, "2 or more: the first learns plainly"),
        "seed": (0 <= options.seed < 2**32, f"0 to {2**32 - 1}"),
        "max_suspects": (options.max_suspects >= 1, "1 or more"),
        "sample": (options.sample is None or options.sample >= 2, "2 or more rows to learn from"),
    }
    wrong = []
    if options.pred_probs is not None:
        if not options.pred_probs.is_file():
            wrong.append(f"--pred-probs is {options.pred_probs}, which is not there; check the name")
        idle = [name for name in _FOR_LEARNING if getattr(source_options, name) not in (None, "none")]
        idle += [name for name in _FOR_TRAINING if getattr(options, name) != getattr(CleanOptions, name)]
        if idle:
            wrong.append(
                f"{shorten(map(_flag, idle), 20)} can't be used with --pred-probs, which trains nothing; leave it out"
            )
    wrong += [
        f"{_flag(name)} is {getattr(options, name):g}; expected {expected}"
        for name, (right, expected) in checks.items()
        if not right
    ]
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        wrong.append(f"--device is {options.device!r}, which can't be used ({reason}); expected auto, cpu or cuda")
    if wrong:
        raise ValueError("; ".join(wrong))
    return torch.device(name)


def kind_of(path: Path) -> str:
    """The kind of a source; an unknown kind or a missing source is an error."""
    if path.is_dir():
        return TABLE if is_dataset(path) else IMAGES
    suffix = path.suffix.lower()
    problem = "is not there" if not path.exists() else f"ends in {suffix or 'nothing'!r}"
    kind = {".npz": ARRAYS, ".npy": ROWS, ".json": COCO, **dict.fromkeys(SUFFIXES, TABLE)}.get(suffix)
    if kind is None or not path.exists():
        raise (ValueError if path.exists() else FileNotFoundError)(
            f"{path} {problem}; expected a folder of images by class, a table ({', '.join(SUFFIXES)}), "
            "an .npz or an .npy file, or a list of images (.json)"
        )
    return kind


def check_options(path: Path, kind: str, options: SourceOptions) -> None:
    """Refuse options that don't apply to a kind of source."""
    given = [name for name in _UNUSED[kind] if getattr(options, name) not in (None, False)]
    suffix, what = path.suffix.lower(), _WORDS[kind].format(path.suffix)
    if kind == TABLE and suffix not in CSV_SUFFIXES:
        given += [name for name in _FOR_TEXT[suffix in JSON_SUFFIXES :] if getattr(options, name) is not None]
        what = "a Hugging Face data set" if path.is_dir() else what
    if given:
        raise ValueError(f"{shorten(map(_flag, given))} can't be used with {what}; leave it out")
    if options.image_size is not None and options.image_size < 8:
        raise ValueError(f"--image-size is {options.image_size}; expected 8 or more pixels")


def check_classes(path: Path, counts: Counter[str]) -> list[str]:
    """Check that there are classes to learn, from their sample counts; returns a note on those with a single sample."""
    samples = counts.total()
    if not counts:
        raise ValueError(f"no sample of {path} has a label; expected labels of at least two classes to learn from")
    if len(counts) < 2:
        raise ValueError(
            f"all {samples:,} samples of {path} have the label {next(iter(counts))!r}; expected at least two classes"
        )
    single = sorted(label for label, count in counts.items() if count == 1)
    if 2 * len(single) > samples:
        raise ValueError(
            f"{path} has {len(counts):,} different labels in {samples:,} samples, such as "
            f"{shorten(counts)}; expected classes with several samples each: is it the column of the labels?"
        )
    if len(counts) - len(single) < 2:
        raise ValueError(
            f"only one label of {path} comes more than once, {counts.most_common(1)[0][0]!r}; "
            "expected at least two classes with several samples each"
        )
    if len(counts) > MOST_CLASSES:
        raise ValueError(
            f"{path} has {len(counts):,} different labels; expected at most {MOST_CLASSES:,}, as each is compared "
            "with each: clean a part of the classes at a time"
        )
    return [f"classes with a single sample, whose label can't be judged: {shorten(single)}"] if single else []


def check_trusted(blank: Sequence[str]) -> None:
    """Refuse trusted samples without label, by their ids."""
    if blank:
        raise ValueError(
            f"--trusted marks {len(blank):,} samples without label: {shorten(blank)}; expected labels that are known "
            "to be right: fill them in, or don't trust them"
        )


def sort_labels(labels: Iterable[str]) -> list[str]:
    """Sort by value if all are whole numbers, else alphabetically."""
    try:
        return sorted(labels, key=lambda label: (int(label), label))
    except ValueError:
        return sorted(labels)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
