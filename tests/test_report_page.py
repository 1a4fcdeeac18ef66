"""The review page in a real browser: what it shows, and how it looks."""

import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import chromium, until, visit
from review_pages import PETS, counter, current, exported, ids, jpeg, pets, press, report, to_list
from vri.cleaning.report import Neighbour, Suspect


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


def test_head_says_how_noisy_and_how_sure(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(30), issues=70)) as page:
        assert page.title() == "pets – label review"
        assert page.inner_text("#headline") == "About 1 in 8 labels looks wrong (10–14\u00a0%)"
        assert page.inner_text("#facts").split("\n") == [
            *("labels", "1,000", "in 3 classes", "suspects", "70", "the 30 most suspicious are below"),
            *("trusted", "40", "known to be right"),
            *("accuracy, plain training → vri", "86.1\u202f% → 94.3\u202f%", "on 40 trusted samples held out"),
        ]
    with visit(browser, report(tmp_path, pets(30), accuracy_before=None)) as page:
        assert page.inner_text("#facts").split("\n")[-3:-1] == ["accuracy", "94.3\u202f%"]
    with visit(browser, report(tmp_path, pets(30), accuracy_before=None, accuracy_after=None)) as page:
        assert "accuracy" not in page.inner_text("#facts")


def test_remarks_are_listed_as_text(browser: Any, tmp_path: Path) -> None:
    remarks = ["class “dgo” has 2 samples; did you mean “dog”?", "<b>column</b> 'x' copies the label"]
    with visit(browser, report(tmp_path, pets(6), remarks=remarks)) as page:
        assert page.locator("#remarks li").all_inner_texts() == remarks
    with visit(browser, report(tmp_path, pets(6))) as page:
        assert page.is_hidden("#remarks")


@pytest.mark.parametrize("kind", ["image", "text", "fields", "long names"])
def test_fits_every_width(browser: Any, tmp_path: Path, kind: str) -> None:
    classes = PETS
    if kind == "image":
        suspects = pets(20, image=jpeg())
    elif kind == "text":
        suspects = pets(20, text="wordwithoutend" * 40)
    elif kind == "fields":
        suspects = pets(20, fields={f"column_{i}" * 5: "value" * 30 for i in range(30)})
    else:
        classes = [f"class number {i} " + "x" * 120 for i in range(40)]
        suspects = [Suspect("p" * 300 + str(i), classes[i], classes[i + 1], 0.1, 0.9, 0.9) for i in range(20)]
    path = report(tmp_path, suspects, classes, source="s" * 200, command="c" * 300)
    with visit(browser, path) as page:
        for width in (360, 390, 768, 1024, 1600):
            page.set_viewport_size({"width": width, "height": 800})
            until(page, "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            to_list(page)
            until(page, "document.querySelector('.card') !== null")  # built a frame later
            boxes = page.eval_on_selector_all(
                ".card", "all => all.map((one) => one.getBoundingClientRect()).map((box) => [box.left, box.right])"
            )
            assert boxes
            assert min(left for left, _ in boxes) >= 0
            assert max(right for _, right in boxes) <= width
            outside = page.evaluate(
                """[...document.querySelectorAll('.card')].flatMap((card) => {
                  const box = card.getBoundingClientRect();
                  return [...card.querySelectorAll('.actions button')].map((one) => one.getBoundingClientRect())
                    .filter((inner) => inner.bottom > box.bottom || inner.right > box.right);
                }).length"""
            )
            assert outside == 0


def test_map_and_pairs_filter(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(26))) as page:
        cells = page.eval_on_selector_all("#map tbody td", "all => all.map((one) => one.textContent)")
        assert cells == ["90", "5", "5", "5", "90", "5", "5", "5", "90"]
        # The cell of true class owl and given label cat holds the suspects given as cat that look like an owl.
        page.click("#map [aria-label='5.0\u202f% of owl labelled cat: 5 suspects']")
        assert ids(page) == [f"cat/{i:04d}.jpg" for i in range(1, 26, 6)]
        assert page.inner_text("#shown") == "5 of 26 suspects, most suspicious first"
        assert current(page) == "cat/0001.jpg"
        page.click("#show-all")
        until(page, "document.getElementById('shown').textContent === '26 suspects, most suspicious first'")
        page.click("#pairs li:nth-child(4) button")
        assert page.inner_text("#pairs li:nth-child(4)").split("\n") == ["dog", "→", "owl", "4"]
        assert ids(page) == [f"dog/{i:04d}.jpg" for i in range(3, 26, 6)]


def test_filters_by_label_state_and_name(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(12))) as page:
        page.select_option("#filter-given", label="owl (4)")
        assert ids(page) == ["owl/0004.jpg", "owl/0005.jpg", "owl/0010.jpg", "owl/0011.jpg"]
        page.select_option("#filter-suggested", label="dog (4)")
        assert ids(page) == ["owl/0005.jpg", "owl/0011.jpg"]
        page.fill("#filter-words", "OWL/0011")
        assert ids(page) == ["owl/0011.jpg"]
        page.fill("#filter-words", "nothing")
        assert page.inner_text("#empty") == "No suspect fits these filters."
        page.click("#show-all")
        page.select_option("#filter-state", "undecided")
        to_list(page)
        press(page, "k k")
        assert (counter(page), ids(page)[0], current(page)) == ("2 of 12 decided", "dog/0002.jpg", "dog/0002.jpg")
        page.select_option("#filter-state", "decided")
        assert ids(page) == ["cat/0000.jpg", "cat/0001.jpg"]


def test_many_classes_get_a_list_of_pairs(browser: Any, tmp_path: Path) -> None:
    classes = [f"bird {i}" for i in range(200)]
    suspects = [Suspect(str(i), classes[i % 7], classes[100], i / 100, 0.9, 0) for i in range(20)]
    with visit(browser, report(tmp_path, suspects, classes)) as page:
        assert page.is_hidden("#map-panel")
        assert page.locator("#pairs li").count() == 7
        page.click("#pairs li:nth-child(2)")
        assert ids(page) == ["1", "8", "15"]


def test_histogram_marks_the_threshold(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(6))) as page:
        heights = page.eval_on_selector_all(".bar", "all => all.map((one) => Number(one.getAttribute('height')))")
        logs = np.log10([3 * i for i in range(1, 40)]) + 0.3
        assert heights[0] == 0
        np.testing.assert_allclose(np.array(heights[1:]) / heights[1], logs / logs[0], rtol=1e-6)
        assert page.locator(".bar.suspicious").count() == 12  # bins below 0.3, each a fortieth
        assert page.text_content(".histogram .strong") == "threshold 0.30"


def test_hostile_names_are_only_text(browser: Any, tmp_path: Path) -> None:
    bad = "<script>window.hit = 1</script>"
    classes = [
        bad,
        "</script><img src=x onerror='window.hit = 1'>",
        "\"'><svg onload=window.hit=1>",
        "=1+1",
        "{{data}}",
    ]
    suspects = [
        Suspect(
            *(f"{bad}/{i}", classes[i], classes[(i + 1) % 5], 0.1, 0.9, 0.9),
            text=bad,
            fields={bad: classes[2]},
            others=[(classes[(i + 2) % 5], 0.1)],
            neighbours=[Neighbour(bad, classes[(i + 3) % 5], text=bad)],
        )
        for i in range(5)
    ]
    path = report(tmp_path, suspects, classes, source=bad, command=bad, version=bad, accuracy_on=bad)
    with visit(browser, path) as page:
        assert page.inner_text("#source") == bad
        assert page.inner_text(".card .text") == bad
        assert page.inner_text(".card .given b") == bad
        assert page.inner_text(".card .near") == f"neighbours 1 {classes[3]}"
        press(page, "p p")
        page.click("#pairs button")
        page.click("#show-all")
        to_list(page)
        press(page, "a a a a")
        press(page, "v")
        assert page.text_content("#details-body .value") == classes[2]
        press(page, "Escape o")
        assert page.locator("#chooser-list [role=option]").all_inner_texts() == classes
        page.keyboard.type("<i>")
        assert page.inner_text("#chooser-list") == "new class “<i>”"
        press(page, "Enter")
        assert [row[4] for row in exported(page)[1:]] == [*classes[1:], "<i>"]
        assert page.evaluate("window.hit") is None
        assert page.locator("svg[onload], img[onerror], i:not([class])").count() == 0


def test_policy_stops_foreign_scripts_and_requests(browser: Any, tmp_path: Path) -> None:
    refused = visit(browser, report(tmp_path, pets(1)))
    page = refused.__enter__()
    page.evaluate(
        """() => {
          window.refused = [];
          document.addEventListener('securitypolicyviolation', (event) => refused.push(event.effectiveDirective));
          const script = document.createElement('script');
          script.textContent = 'window.hit = 1';
          document.body.append(script);
          new Image().src = 'https://example.org/x.png';
        }"""
    )
    until(page, "refused.length === 2")
    assert page.evaluate("[window.hit, ...refused]") == [None, "script-src-elem", "img-src"]
    with pytest.raises(AssertionError, match="Content Security Policy"):  # the other tests would have seen it
        refused.__exit__(None, None, None)


CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const seen = element.checkVisibility() && !element.closest('script, title, :disabled');
    if (!walker.currentNode.data.trim() || !seen) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(rgb(element.closest('svg') ? style.fill : style.color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([ratio, walker.currentNode.data]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_themes(browser: Any, tmp_path: Path, scheme: str) -> None:
    shades = [[0.6, 0.005, 0.02], [0.05, 0.15, 0.3], [0.3, 0.1, 0.6]]  # every step of the map
    more: Any = {"others": [("cat", 0.05), ("owl", 0.01)], "neighbours": [Neighbour(str(i), PETS[i]) for i in range(3)]}
    suspects = [*pets(6, **more), Suspect("odd", "cat", "dog", 0.1, 0.9, 0.8, text="belongs nowhere", **more)]
    path = report(tmp_path, suspects, transition_matrix=shades, remarks=["a remark"])
    with visit(browser, path, color_scheme=scheme) as page:
        dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((part) => part < 60)"
        for _ in range(2):
            assert page.evaluate(dark) == (scheme == "dark")
            to_list(page)
            press(page, "k a d o")
            page.keyboard.type("something else")
            assert min(ratio for ratio, text in page.evaluate(CONTRASTS) if text) >= 4.5
            press(page, "Enter")
            for keys in ("u 2", "p", "v", "Escape g"):  # cards, pairs, details, grid
                press(page, keys)
                assert [(ratio, text) for ratio, text in page.evaluate(CONTRASTS) if ratio < 4.5] == []
            press(page, "g")
            page.click("#theme")
            scheme = "light" if scheme == "dark" else "dark"
            page.reload()  # the choice is kept
            assert page.evaluate(dark) == (scheme == "dark")


def test_without_scripts_and_on_paper(browser: Any, tmp_path: Path) -> None:
    path = report(tmp_path, pets(6))
    with visit(browser, path, java_script_enabled=False) as page:
        assert page.inner_text("noscript").startswith("This page needs JavaScript to show the suspects.")
    with visit(browser, path) as page:
        page.emulate_media(media="print")
        assert page.is_visible("#headline")
        assert page.is_hidden("#list")
        assert page.is_hidden("#progress")


def test_controls_have_names_and_the_counter_speaks(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(3, image=jpeg()))) as page:
        for role in ("button", "combobox", "searchbox"):
            assert page.get_by_role(role).count() > 0
            assert page.get_by_role(role, name=re.compile(r"\S")).count() == page.get_by_role(role).count()
        assert page.get_attribute("#counter", "aria-live") == "polite"
        to_list(page)
        press(page, "a")
        assert (
            page.evaluate("document.activeElement.getAttribute('aria-label')")
            == "cat/0001.jpg: given cat, suggested owl"
        )
        assert page.inner_text("#message") == "cat/0000.jpg: changed to dog"


def test_of_many_suspects_a_few_are_on_the_page(browser: Any, tmp_path: Path) -> None:
    pictures = [jpeg(54, seed) for seed in range(20)]
    suspects = [
        Suspect(f"{i:04d}.jpg", PETS[i % 3], PETS[(i + 1) % 3], i / 5000, 0.9, 0.1, image=pictures[i % 20])
        for i in range(5000)
    ]
    with visit(browser, report(tmp_path, suspects)) as page:
        to_list(page)
        press(page, "k a d")
        assert counter(page) == "3 of 5,000 decided"
        page.keyboard.press("Control+End")
        until(page, "[...document.querySelectorAll('.card .id')].at(-1).textContent === '4999.jpg'")
        assert page.locator(".card").count() < 60
        picture = page.locator(".card img").last
        assert picture.get_attribute("src") == f"data:image/jpeg;base64,{b64encode(pictures[19]).decode()}"
        assert picture.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 54
