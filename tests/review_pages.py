"""Review pages for tests, and what a person does on them."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vri.cleaning.cells import unescape
from vri.cleaning.report import Summary, Suspect, write_report

HEADER = ["id", "given_label", "suggested_label", "decision", "new_label"]
PETS = ["cat", "dog", "owl"]


def summary(classes: Sequence[str] = PETS, suspects: Sequence[Suspect] = (), **changes: Any) -> Summary:
    number = {name: i for i, name in enumerate(classes)}
    pairs = np.zeros((len(classes), len(classes)), dtype=int)
    for suspect in suspects:
        pairs[number[suspect.given], number[suspect.suggested]] += 1
    matrix = np.full((len(classes), len(classes)), 0.1 / max(1, len(classes) - 1))
    np.fill_diagonal(matrix, 0.9)
    values: dict[str, Any] = {
        "source": "pets",
        "classes": classes,
        "samples": 1000,
        "trusted": 40,
        "issues": len(suspects),
        "noise_rate": 0.125,
        "noise_interval": (0.1, 0.14),
        "transition_matrix": matrix.tolist(),
        "pair_counts": pairs.tolist(),
        "quality_counts": [3 * i for i in range(40)],
        "threshold": 0.3,
        "accuracy_before": 0.861,
        "accuracy_after": 0.943,
        "accuracy_on": "40 trusted samples held out",
        "version": "0.1.0",
        "command": "vri clean pets --out cleaned",
    }
    return Summary(**(values | changes))


def pets(count: int = 30, **content: Any) -> list[Suspect]:
    """Suspects of all six pairs in turn."""
    pairs = [(given, other) for given in PETS for other in PETS if other != given]
    return [
        Suspect(
            f"{pairs[i % 6][0]}/{i:04d}.jpg", *pairs[i % 6], quality=i / 1000, confidence=0.9, outlier=0.1, **content
        )
        for i in range(count)
    ]


def jpeg(side: int = 24, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def report(folder: Path, suspects: Sequence[Suspect], classes: Sequence[str] = PETS, **changes: Any) -> Path:
    path = folder / "report.html"
    write_report(path, summary(classes, suspects, **changes), suspects)
    return path


def counter(page: Any) -> str:
    return page.inner_text("#counter")


def ids(page: Any) -> list[str]:
    """Names of the cards, in the order of the page."""
    return page.eval_on_selector_all(".card .id", "all => all.map((one) => one.textContent)")


def current(page: Any) -> str:
    return page.text_content(".card.current .id")


def press(page: Any, keys: str) -> None:
    for key in keys.split():
        page.keyboard.press(key)


def to_list(page: Any) -> None:
    page.evaluate("document.getElementById('review').scrollIntoView()")


def exported(page: Any) -> list[list[str]]:
    """The rows of the downloaded review.csv, read by Python's own reader."""
    with page.expect_download() as waiting:
        page.click("#export")
    assert waiting.value.suggested_filename == "review.csv"
    content = Path(waiting.value.path()).read_bytes().decode("utf-8")
    return [[unescape(cell) for cell in row] for row in csv.reader(io.StringIO(content, newline=""))]
