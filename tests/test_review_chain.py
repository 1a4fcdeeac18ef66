"""From a folder of images to a corrected copy: clean, open the page, filter, decide, reload, export, apply."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from browser import chromium, until, visit
from vri.cli import main


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def folder(root: Path) -> set[str]:
    """Zeros, ones and twos; every fourth zero lies among the ones. Returns those."""
    images, labels = load_digits(n_class=3, return_X_y=True)
    wrong = set()
    for number, (pixels, label) in enumerate(zip(images[:300], labels[:300], strict=True)):
        misplaced = label == 0 and number % 4 == 0
        name = ["zero", "<b>one", "two"][1 if misplaced else label]
        path = root / name / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels.reshape(8, 8) * 15.9).astype(np.uint8)).resize((32, 32)).save(path)
        if misplaced:
            wrong.add(f"{name}/{path.name}")
    return wrong


def choose(page: Any, box: str, label: str) -> None:
    """The option of this label; how many suspects have it stands behind."""
    texts = page.eval_on_selector_all(f"{box} option", "options => options.map(o => o.textContent)")
    page.select_option(box, label=next(text for text in texts if text.startswith(f"{label} (")))


def test_from_a_folder_to_a_corrected_copy(browser: Any, tmp_path: Path, capsys: Any) -> None:
    wrong = folder(tmp_path / "photos")
    before = {path: path.read_bytes() for path in (tmp_path / "photos").rglob("*.png")}
    quick = ["--image-size", "8", "--epochs", "20", "--quiet"]
    assert main(["clean", str(tmp_path / "photos"), "--out", str(tmp_path / "out"), *quick]) == 0
    with visit(browser, tmp_path / "out" / "report.html", 1280, 900, accept_downloads=True) as page:
        choose(page, "#filter-given", "<b>one")
        choose(page, "#filter-suggested", "zero")
        page.evaluate("document.getElementById('review').focus()")  # keys in a list of choices are its own
        until(page, "document.querySelectorAll('.card').length >= 3")
        page.keyboard.press("a")
        page.keyboard.press("d")
        page.keyboard.press("k")
        page.reload()
        until(page, "document.getElementById('counter').innerText.startsWith('3 of ')")
        with page.expect_download() as waiting:
            page.click("#export")
        waiting.value.save_as(tmp_path / "review.csv")
    rows = [line.split(",") for line in (tmp_path / "review.csv").read_text().splitlines()[1:]]
    assert sorted(row[3] for row in rows) == ["accept", "drop", "keep"]
    decided = {row[3]: row[0] for row in rows}
    assert {decided["accept"], decided["drop"]} <= wrong  # the two most suspicious of this pair

    capsys.readouterr()
    done = main(["apply", str(tmp_path / "photos"), str(tmp_path / "review.csv"), "--out", str(tmp_path / "new")])
    assert done == 0
    names = {path.relative_to(tmp_path / "new").as_posix() for path in (tmp_path / "new").rglob("*.png")}
    expected = {path.relative_to(tmp_path / "photos").as_posix() for path in before}
    expected -= {decided["accept"], decided["drop"]}
    assert names == expected | {decided["accept"].replace("<b>one/", "zero/")}
    assert {path: path.read_bytes() for path in (tmp_path / "photos").rglob("*.png")} == before
