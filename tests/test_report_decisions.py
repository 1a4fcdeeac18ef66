"""Deciding on the review page in a real browser: keys, undo, export, import, and what stays."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import chromium, until, visit
from review_pages import HEADER, counter, current, exported, jpeg, pets, press, report, to_list
from vri.cleaning.cells import escape, unescape


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


def test_decide_by_keyboard_reload_export(browser: Any, tmp_path: Path) -> None:
    suspects = pets(30, image=jpeg())
    with visit(browser, report(tmp_path, suspects)) as page:
        to_list(page)
        press(page, "k a d j h ArrowRight a Shift+J Shift+J k")
        # 0 kept, 1 accepted, 2 dropped, at 3; on and back, on to 4: accepted, at 5; two back to 3: kept, on to 5.
        assert current(page) == "owl/0005.jpg"
        press(page, "o")
        page.keyboard.type("CAT")
        press(page, "Enter")  # cat is what was suggested for 4, and for 5 dog: another class
        press(page, "o")
        page.keyboard.type("ow")
        press(page, "Enter")
        press(page, "o")
        page.keyboard.type("a new, “odd” one")
        press(page, "Enter")
        assert counter(page) == "8 of 30 decided"

        def row(number: int, decision: str, label: str) -> list[str]:
            suspect = suspects[number]
            return [suspect.id, suspect.given, suspect.suggested, decision, label]

        expected = [
            HEADER,
            row(0, "keep", "cat"),
            row(1, "accept", "owl"),
            row(2, "drop", ""),
            row(3, "keep", "dog"),
            row(4, "accept", "cat"),
            row(5, "other", "cat"),
            row(6, "other", "owl"),
            row(7, "other", "a new, “odd” one"),
        ]
        assert exported(page) == expected
        page.reload()
        assert counter(page) == "8 of 30 decided"
        assert current(page) == "dog/0008.jpg"
        assert exported(page) == expected
        to_list(page)
        press(page, "u u")  # after a reload the latest decisions are taken back, one by one
        assert exported(page) == expected[:-2]


def test_chooser_turns_the_two_labels_at_hand_into_keep_and_accept(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(6))) as page:
        to_list(page)
        press(page, "o Enter")  # first of the list: cat, the given label
        press(page, "o ArrowDown ArrowDown ArrowDown ArrowUp ArrowDown Enter")  # last of the list: owl, suggested
        press(page, "o x Escape")
        assert page.is_hidden("#chooser")
        assert [row[3:] for row in exported(page)[1:]] == [["keep", "cat"], ["accept", "owl"]]


def test_undo_clear_and_pressing_again(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(6))) as page:
        to_list(page)
        press(page, "k a h h d")  # back to the first, and dropped after all
        assert [row[3] for row in exported(page)[1:]] == ["drop", "accept"]
        press(page, "u")
        assert [row[3] for row in exported(page)[1:]] == ["keep", "accept"]
        assert current(page) == "cat/0000.jpg"
        page.click(".card:nth-child(2) [data-kind=accept]")
        assert [row[3] for row in exported(page)[1:]] == ["keep"]
        page.click(".card:nth-child(2) [data-kind=drop]")
        page.click("#clear")
        page.click("#confirm [data-close]")
        assert counter(page) == "2 of 6 decided"
        page.click("#clear")
        page.click("#confirm-clear")
        assert (counter(page), page.is_disabled("#export")) == ("0 of 6 decided", True)
        page.click("#undo")
        assert [row[3] for row in exported(page)[1:]] == ["keep", "drop"]
        page.click(".card:nth-child(1) [data-kind=accept]")
        page.reload()
        press(page, "u")  # the steps are gone, the order of decisions isn't
        assert [row[:1] + row[3:4] for row in exported(page)[1:]] == [["cat/0001.jpg", "drop"]]


def test_nothing_is_decided_out_of_sight(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(300, text="a text")), height=700) as page:
        press(page, "a")
        assert counter(page) == "0 of 300 decided"
        box = page.locator(".card.current").bounding_box()
        assert 0 <= box["y"] <= 700 - box["height"]
        press(page, "a")
        assert counter(page) == "1 of 300 decided"
        page.mouse.wheel(0, 9000)
        until(page, "scrollY > 5000 && !document.querySelector('.card.current')")
        press(page, "k")
        assert counter(page) == "1 of 300 decided"
        here = current(page)
        assert int(here[4:8]) > 30
        press(page, "k")
        assert [row[0] for row in exported(page)[1:]] == ["cat/0000.jpg", here]


def test_keys_type_where_one_types(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(6))) as page:
        page.click("#filter-words")
        page.keyboard.type("dokau?")
        assert page.input_value("#filter-words") == "dokau?"
        assert (counter(page), page.is_visible("#keys")) == ("0 of 6 decided", False)
        page.fill("#filter-words", "")
        page.evaluate("document.activeElement.blur()")
        press(page, "? k")
        assert (counter(page), page.is_visible("#keys")) == ("0 of 6 decided", True)


def test_review_moves_to_another_machine(browser: Any, tmp_path: Path) -> None:
    path = report(tmp_path, pets(6))
    review = tmp_path / "review.csv"
    rows = [
        ["cat/0000.jpg", "cat", "dog", "drop", ""],
        ["cat/0001.jpg", "cat", "owl", "other", '=1+"1",\n\'='],
        ["dog/0002.jpg", "owl", "cat", "keep", "owl"],  # its labels are others here
        ["cow/0000.jpg", "cat", "dog", "keep", "cat"],
    ]
    with review.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([HEADER, *([escape(cell) for cell in row] for row in rows)])
    with visit(browser, path) as page:
        page.set_input_files("#file", review)
        until(page, "document.getElementById('counter').textContent.startsWith('2')")
        assert page.inner_text("#message") == "2 decisions imported; 2 rows left out, as they are not about this report"
        assert exported(page) == [HEADER, *rows[:2]]
        for content, problem in [
            ("a,b\r\n", "expected the columns id, given_label, suggested_label, decision, new_label"),
            (
                f"{','.join(HEADER)}\n1,a,b,maybe,\n",
                "row 2 has the decision “maybe”, expected keep, accept, drop, other",
            ),
            (f"{','.join(HEADER)}\n1,a,b,other,\n", "row 2 names no new label"),
            (f'{",".join(HEADER)}\n"1,a,b,keep,\n', "a quoted cell of row 2 has no end"),
        ]:
            review.write_text(content, "utf-8")
            page.set_input_files("#file", review)
            until(page, "document.getElementById('message').textContent.includes('not imported')")
            assert page.inner_text("#message") == f"review.csv was not imported: {problem}"
            page.evaluate("say('')")
        assert counter(page) == "2 of 6 decided"


def test_cells_agree_with_those_of_vri_apply(browser: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    alphabet = list("'=+-@\t\r\n,\"a ;é")
    cells = ["".join(generator.choice(alphabet, size)) for size in generator.integers(0, 6, 400)]
    with visit(browser, report(tmp_path, pets(1))) as page:
        assert page.evaluate("cells => cells.map(escapeCell)", cells) == [escape(cell) for cell in cells]
        assert page.evaluate("cells => cells.map(unescapeCell)", cells) == [unescape(cell) for cell in cells]
        table = [["x", *row] for row in zip(*[iter(cells)] * 4, strict=True)]
        written = page.evaluate("writeCsv", table)
        read = [[unescape(cell) for cell in row] for row in csv.reader(io.StringIO(written, newline=""))]
        assert read == table
        assert page.evaluate("parseCsv", written) == table


def test_without_storage_it_says_so_and_works(browser: Any, tmp_path: Path) -> None:
    warning = "This browser does not keep decisions for this page."
    with visit(browser, report(tmp_path, pets(6))) as page:
        assert page.is_hidden("#notice")
        page.evaluate(
            "() => void (Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError') })"
        )
        to_list(page)
        press(page, "k")
        assert page.is_visible("#notice")
        assert page.inner_text("#notice").startswith(warning)
        page.add_init_script(
            "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no') } })"
        )
        page.on("dialog", lambda dialog: dialog.accept())  # leaving would lose a decision, so the browser asks
        page.reload()
        assert page.is_visible("#notice")
        assert page.inner_text("#notice").startswith(warning)
        to_list(page)
        press(page, "k a")
        page.click("#theme")
        assert [row[3] for row in exported(page)[1:]] == ["keep", "accept"]


def test_two_tabs_share_decisions(browser: Any, tmp_path: Path) -> None:
    path = report(tmp_path, pets(6))
    with visit(browser, path) as page:
        other = page.context.new_page()
        other.goto(path.as_uri())
        to_list(page)
        press(page, "k k")
        until(other, "document.getElementById('counter').textContent === '2 of 6 decided'")
        assert other.get_attribute(".card:nth-child(2) [data-kind=keep]", "aria-pressed") == "true"
