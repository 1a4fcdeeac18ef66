"""The review page in a real browser: slider, orders, search, pairs, grid, many decisions at once, neighbours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import chromium, until, visit
from review_pages import PETS, counter, current, exported, ids, jpeg, pets, press, report, to_list
from vri.cleaning.report import Neighbour, Suspect


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


def slide(page: Any, to: int) -> None:
    page.fill("#reach", str(to))
    until(page, f"arrangement.reach === {to}")


def varied(count: int) -> list[Suspect]:
    """Suspects of three pairs, of very different sizes, whose order depends on what they are sorted by."""
    pairs = [("cat", "dog")] * 4 + [("owl", "cat")] * 2 + [("dog", "owl")]
    return [
        Suspect(
            str(37 * i % 101), *pairs[i % 7], quality=i / 100, confidence=(13 * i % 40) / 40, outlier=(7 * i % 9) / 9
        )
        for i in range(count)
    ]


def test_slider_shows_fewer_and_more_than_were_named(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(30), issues=10), height=5000) as page:
        assert (page.inner_text("#shown"), page.inner_text("#reach-text")) == (
            "10 suspects, most suspicious first",
            "the 10 that look wrong",
        )
        assert ids(page) == [suspect.id for suspect in pets(10)]
        slide(page, 25)
        assert page.inner_text("#reach-text") == "10 and 15 more, quality up to 0.02"
        assert ids(page) == [suspect.id for suspect in pets(25)]
        assert page.inner_text("#filter-given option:nth-child(2)") == "cat (9)"  # 0, 1, 6, 7, …, 24
        line, threshold = (page.locator(f".histogram .{name}").get_attribute("x1") for name in ("reach", "threshold"))
        assert 0 < float(line) < float(threshold)
        page.evaluate("list.goTo(20, 0, innerHeight)")
        press(page, "a")
        slide(page, 4)
        assert page.inner_text("#reach-text") == "the worst 4 of 10, quality up to <0.01"
        assert (counter(page), len(ids(page))) == ("0 of 4 decided, 1 beyond", 4)
        slide(page, 30)
        page.reload()  # it is kept
        assert (counter(page), page.input_value("#reach")) == ("1 of 30 decided", "30")
        assert exported(page)[1:] == [[pets(30)[20].id, "dog", "cat", "accept", "cat"]]


def test_where_no_label_looks_wrong_the_least_certain_can_be_seen(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(6), issues=0)) as page:
        nothing = "No label looks wrong: there is nothing to review."
        assert page.inner_text("#empty") == f"{nothing} Move the slider to see the labels that are least certain."
        press(page, "k")
        slide(page, 3)
        assert (len(ids(page)), page.is_hidden("#empty")) == (3, True)
    with visit(browser, report(tmp_path, [])) as page:
        assert page.inner_text("#empty") == nothing
        assert page.is_hidden("#reach-box")


def test_orders(browser: Any, tmp_path: Path) -> None:
    suspects = varied(30)
    keys = {
        "sure": lambda s: -s.confidence,
        "unsure": lambda s: s.confidence,
        "odd": lambda s: -s.outlier,
        "name": lambda s: int(s.id),  # 9 comes before 10
        "suspicious": lambda s: s.quality,
    }
    with visit(browser, report(tmp_path, suspects), height=4000) as page:
        for order, key in keys.items():
            page.select_option("#order", order)
            assert ids(page) == [s.id for s in sorted(suspects, key=key)]
        page.select_option("#order", "sure")
        page.reload()
        assert page.inner_text("#shown") == "30 suspects, surest suggestion first"


def test_search_looks_into_names_texts_and_cells(browser: Any, tmp_path: Path) -> None:
    suspects = [
        Suspect("first", "cat", "dog", 0.1, 0.9, 0, text="It Purrs\nand purrs"),
        Suspect("second", "cat", "dog", 0.2, 0.9, 0, fields={"sound": "PURR", "legs": "4"}),
        Suspect("purring", "cat", "dog", 0.3, 0.9, 0, text="barks"),
    ]
    with visit(browser, report(tmp_path, suspects)) as page:
        press(page, "/")
        for words, found in [("purr", ["first", "second", "purring"]), ("and Purr", ["first"]), ("legs", [])]:
            page.fill("#filter-words", words)
            assert ids(page) == found


def test_a_pair_is_accepted_at_once_and_taken_back_at_once(browser: Any, tmp_path: Path) -> None:
    suspects = varied(14)
    with visit(browser, report(tmp_path, suspects), height=3000) as page:
        to_list(page)
        press(page, "d p")
        heads = page.locator(".pair-head h3").all_inner_texts()
        assert heads == ["cat → dog", "owl → cat", "dog → owl"]
        assert page.inner_text(".pair-head .hint") == "8 suspects, 7 undecided"
        cats = [s.id for s in suspects if s.given == "cat"]
        assert ids(page)[:8] == cats
        press(page, "ArrowDown ArrowUp")
        page.click(".pair-head [data-many=accept]")
        assert [(row[0], row[3]) for row in exported(page)[1:]] == [
            (name, "drop" if i == 0 else "accept") for i, name in enumerate(cats)
        ]
        assert page.is_disabled(".pair-head [data-many=accept]")
        assert current(page) == next(s.id for s in suspects if s.given == "owl")
        press(page, "u")
        assert [row[3] for row in exported(page)[1:]] == ["drop"]
        page.click(".pair-head [data-many=keep]")
        press(page, "k")
        page.reload()
        to_list(page)
        press(page, "u u")  # after a reload, too, all of it is one step
        assert [row[3] for row in exported(page)[1:]] == ["drop"]


def test_what_is_sure_enough_is_accepted_at_once(browser: Any, tmp_path: Path) -> None:
    suspects = varied(40)
    with visit(browser, report(tmp_path, suspects)) as page:
        to_list(page)
        press(page, "k")
        page.select_option("#filter-given", label="cat (24)")
        page.click("#open-many")
        sure = [s.id for s in suspects[1:] if s.given == "cat" and s.confidence >= 0.7]
        page.fill("#many-sure", "70")  # what has exactly 70 % is in
        assert 0.7 in {s.confidence for s in suspects if s.id in sure}
        assert page.inner_text("#many-do") == f"Accept {len(sure)}"
        page.check("#many [value=drop]")
        assert page.inner_text("#many-do") == f"Drop {len(sure)}"
        page.check("#many [value=accept]")
        press(page, "Enter")
        assert page.inner_text("#message") == f"{len(sure)} suspects accepted; U takes it back"
        assert [row[0] for row in exported(page)[1:] if row[3] == "accept"] == sure
        press(page, "u")
        assert [row[3] for row in exported(page)[1:]] == ["keep"]


def test_second_and_third_class(browser: Any, tmp_path: Path) -> None:
    classes = [*PETS, "bat", "cow"]
    suspects = [Suspect(str(i), "cat", "dog", 0.1, 0.6, 0, others=[("owl", 0.3), ("bat", 0.002)]) for i in range(3)]
    suspects.append(Suspect("3", "cat", "dog", 0.1, 0.6, 0))
    with visit(browser, report(tmp_path, suspects, classes)) as page:
        assert page.inner_text(".card .others") == "or owl 30\u202f% bat <1\u202f%"
        to_list(page)
        press(page, "2 3")
        page.click(".card:nth-child(3) .others button")
        press(page, "2")
        assert page.inner_text("#message") == "No further class comes into question."
        assert [row[3:] for row in exported(page)[1:]] == [["other", "owl"], ["other", "bat"], ["other", "owl"]]


def test_grid_is_nothing_but_suspects(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(300, image=jpeg())), height=700) as page:
        press(page, "g")
        assert all(page.is_hidden(part) for part in (".head", "#panels", "#controls", ".card .actions", ".card .id"))
        press(page, "k a ArrowDown d")
        columns = page.evaluate("list.columns")
        assert columns >= 8
        assert [row[:1] + row[3:4] for row in exported(page)[1:]] == [
            [pets(300)[0].id, "keep"],
            [pets(300)[1].id, "accept"],
            [pets(300)[2 + columns].id, "drop"],
        ]
        page.click(".card:nth-child(6)")
        assert current(page) == pets(6)[5].id
        page.click("#deck [data-key=k]")
        in_sight = page.evaluate(
            """[...document.querySelectorAll('.card')].map((card) => card.getBoundingClientRect()).filter((box) =>
              box.top >= document.getElementById('progress').offsetHeight
              && box.bottom <= document.getElementById('deck').getBoundingClientRect().top).length"""
        )
        assert 2 * columns <= in_sight < 300
        press(page, "Shift+A")
        assert counter(page) == f"{in_sight} of 300 decided"
        press(page, "u")
        assert counter(page) == "4 of 300 decided"
        press(page, "Escape")
        assert page.is_visible(".card .actions")


def test_details_show_the_neighbours_and_take_keys(browser: Any, tmp_path: Path) -> None:
    bad = "<img src=x onerror='window.hit = 1'>"
    near = [Neighbour("near/1.jpg", "dog", image=jpeg(16)), Neighbour(bad, "cat", text=bad)]
    suspects = pets(3, image=jpeg(), neighbours=near)
    with visit(browser, report(tmp_path, suspects)) as page:
        assert page.inner_text(".card .near") == "neighbours 1 dog, 1 cat"
        assert page.locator("[autofocus]").count() == 0  # a browser complains where something has the focus already
        to_list(page)
        press(page, "v")
        assert page.evaluate("document.activeElement.matches('#details [data-close]')")
        assert page.locator(".neighbours b").all_inner_texts() == ["dog", "cat"]
        assert page.locator(".neighbours .hint").all_inner_texts() == ["near/1.jpg", bad]
        assert (
            page.locator(".neighbours img").evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 16
        )
        press(page, "k")
        assert (page.inner_text("#details-title"), counter(page)) == ("cat/0001.jpg", "1 of 3 decided")
        press(page, "j a v")
        assert page.is_hidden("#details")
        assert [row[3] for row in exported(page)[1:]] == ["keep", "accept"]
        assert page.evaluate("window.hit") is None
    near = [Neighbour(str(i), PETS[i], fields={"a": f"{i}", bad: bad}) for i in range(2)]
    with visit(browser, report(tmp_path, pets(3, fields={bad: "own", "a": "7"}, neighbours=near))) as page:
        to_list(page)
        page.click(".card .content")
        rows = page.eval_on_selector_all(
            ".alike tr", "all => all.map((row) => [...row.cells].map((one) => one.innerText))"
        )
        assert rows == [["", "this one", "like cat", "like dog"], [bad, "own", bad, bad], ["a", "7", "0", "1"]]
        assert counter(page) == "0 of 3 decided"
        assert page.evaluate("window.hit") is None


BROKEN = """() => [...document.querySelectorAll('.card .label b')].flatMap((label) => {
  const broken = [];
  const walker = document.createTreeWalker(label, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    for (const word of walker.currentNode.data.matchAll(/[^\\s_/-]+/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, word.index);
      range.setEnd(walker.currentNode, word.index + word[0].length);
      const box = range.getBoundingClientRect();
      const inside = box.right <= label.getBoundingClientRect().right + 1;
      if (range.getClientRects().length !== 1 || !inside) broken.push(word[0]);
    }
  }
  return broken;
})"""
CUT = """() => [...document.querySelectorAll('.actions span, #views button, .progress > button')]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth).map((one) => one.textContent)"""
COVERED = """() => [...document.querySelectorAll('.card')].filter((card) => {
  const top = card.querySelector('.actions').getBoundingClientRect().top;
  const parts = [...card.querySelectorAll('.id, .about, .more')];
  return parts.some((part) => part.getBoundingClientRect().bottom > top + 0.5);
}).length"""


@pytest.mark.parametrize("kind", ["image", "text"])
def test_nothing_is_cut_broken_or_covered(browser: Any, tmp_path: Path, kind: str) -> None:
    classes = ["pullover", "ankle boot", "hand_knitted_cardigan", "Mediterranean/interdisciplinary"]
    content: dict[str, Any] = {"image": jpeg()} if kind == "image" else {"text": "a text " * 100}
    suspects = [
        Suspect(
            f"{classes[i % 4]}/a_rather_long_file_name_of_a_picture_{i:05d}.jpeg",
            *(classes[i % 4], classes[(i + 1) % 4], 0.1, 0.97, 0.9),
            others=[(classes[(i + 2) % 4], 0.02), (classes[(i + 3) % 4], 0.01)],
            neighbours=[Neighbour(str(k), classes[k]) for k in range(4)],
            **content,
        )
        for i in range(8)
    ]
    with visit(browser, report(tmp_path, suspects, classes)) as page:
        for width in (390, 1280, 1440, 1920):
            page.set_viewport_size({"width": width, "height": 1000})
            until(page, "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
            to_list(page)
            assert [page.evaluate(check) for check in (BROKEN, CUT, COVERED)] == [[], [], 0], width


@pytest.mark.parametrize("size", [(390, 844), (360, 640)])
def test_on_a_phone_suspects_start_on_the_first_screen(browser: Any, tmp_path: Path, size: tuple[int, int]) -> None:
    remarks = ["a remark that is not short, as it says what was found and what to do about it"] * 3
    path = report(tmp_path, pets(30, image=jpeg()), source="a name of some length.csv", remarks=remarks)
    with visit(browser, path, *size, has_touch=True, is_mobile=True) as page:
        assert page.evaluate("scrollY") == 0
        box = page.locator(".card").first.bounding_box()
        assert box["y"] + min(box["height"], 120) <= size[1]
        assert page.is_hidden("#panels")
        page.click("#overview-panels summary")
        assert page.is_visible("#panels")
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        page.click("[data-view-name=grid]")
        page.tap("#deck [data-key=a]")
        assert counter(page) == "1 of 30 decided"
