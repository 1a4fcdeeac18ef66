"""The review page: what is written into the file, and what a real browser makes of it."""

import csv
import io
import json
import re
import statistics
import weakref
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from browser import chromium, until, visit
from vri.cleaning.cells import escape, unescape
from vri.cleaning.report import BATCH, Summary, Suspect, headline, write_report

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


class Elements(HTMLParser):
    """The policy, and every script and style with its attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.policy = ""
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self._open = False
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""
        self._open = tag in ("script", "style")
        if self._open:
            self.found.append((tag, values, ""))

    def handle_data(self, data: str) -> None:
        if self._open:
            tag, values, text = self.found[-1]
            self.found[-1] = (tag, values, text + data)

    def handle_endtag(self, tag: str) -> None:
        self._open = False

    def blocks(self) -> dict[str, Any]:
        """The data by its id."""
        return {str(a["id"]): json.loads(text) for _, a, text in self.found if a.get("type") == "application/json"}


# ---- the file


@pytest.mark.parametrize(
    ("rate", "interval", "words"),
    [
        (0.125, (0.104, 0.141), "About 1 in 8 labels looks wrong (10–14 %)"),
        (0.0079, (0.006, 0.011), "About 1 in 130 labels looks wrong (0.6–1.1 %)"),
        (0.0011, (0.001, 0.0012), "About 1 in 910 labels looks wrong (0.10–0.12 %)"),
        (0.0001, (0, 0.0004), "Hardly any label looks wrong (0.00–0.04 %)"),
        (0.41, (0.4, 0.43), "About 4 in 10 labels look wrong (40–43 %)"),
        (0.2, (0.2, 0.2), "About 1 in 5 labels looks wrong (20 %)"),
        (0.97, (0.95, 0.99), "Nearly all labels look wrong (95–99 %)"),
    ],
)
def test_share_of_wrong_labels_in_words(rate: float, interval: tuple[float, float], words: str) -> None:
    assert headline(summary(noise_rate=rate, noise_interval=interval)) == words.replace(" %", "\u00a0%")


def test_file_holds_what_it_was_given(tmp_path: Path) -> None:
    hostile = ["</script><script>alert(1)</script>", "<!--", "a&b\u2028\u2029\"'\\", "\udcff not Unicode"]
    suspects = [
        Suspect(
            hostile[0], hostile[1], hostile[2], 0.12345, 1, 0, image=b"\xff\xd8", fields={"<b>": "&", "x": hostile[0]}
        ),
        Suspect(hostile[3], hostile[2], hostile[1], 0, 0.5, 1, text=hostile[0]),
    ]
    path = report(tmp_path, suspects, hostile)
    blocks = Elements(path).blocks()
    assert blocks["suspects-0"] == [
        [hostile[0], 1, 2, 0.1235, 1, 0, None, [0, "&", 1, hostile[0]]],
        [hostile[3], 2, 1, 0, 0.5, 1, hostile[0], []],
    ]
    assert blocks["pictures-0"] == ["/9g=", None]
    overview = blocks["overview"]
    assert (overview["classes"], overview["columns"], overview["kind"]) == (hostile, ["<b>", "x"], "image")
    for _, attributes, text in Elements(path).found:
        if attributes:
            assert not set("<>&\u2028\u2029") & set(text)


def test_only_our_own_style_and_script_are_allowed(tmp_path: Path) -> None:
    page = Elements(report(tmp_path, pets(3)))
    (style,) = (text for tag, _, text in page.found if tag == "style")
    (script,) = (text for tag, a, text in page.found if tag == "script" and not a)
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    assert page.policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_decisions_belong_to_source_samples_and_labels(tmp_path: Path) -> None:
    def key(suspects: Sequence[Suspect], **changes: Any) -> str:
        return Elements(report(tmp_path, suspects, **changes)).blocks()["overview"]["key"]

    first = key(pets(3))
    other_suggestion = [*pets(2), Suspect("dog/0002.jpg", "dog", "owl", 0.002, 0.9, 0.1)]
    assert key(pets(3), noise_rate=0.5) == first
    assert len({first, key(pets(4)), key(pets(3), source="birds"), key(other_suggestion)}) == 4


def test_suspects_are_never_all_held(tmp_path: Path) -> None:
    alive: weakref.WeakSet[Suspect] = weakref.WeakSet()
    most = 0

    def stream() -> Iterator[Suspect]:
        nonlocal most
        for i in range(10 * BATCH):
            suspect = Suspect(str(i), "cat", "dog", 0.1, 0.9, 0.1, image=b"x")
            alive.add(suspect)
            most = max(most, len(alive))
            yield suspect
            del suspect

    write_report(tmp_path / "report.html", summary(), stream())
    assert most <= 2 * BATCH + 2  # the block being gathered, and the one before until its name is bound anew
    assert (
        sum(len(rows) for name, rows in Elements(tmp_path / "report.html").blocks().items() if "suspects" in name)
        == 500
    )


@pytest.mark.parametrize(
    ("changes", "suspects", "message"),
    [
        ({}, [Suspect("a", "cow", "dog", 0, 0, 0)], "suspect 'a' has the label 'cow', which is not in summary.classes"),
        (
            {},
            [Suspect("a", "cat", "dog", float("nan"), 0, 0)],
            "suspect 'a' has quality nan; expected a number from 0 to 1",
        ),
        ({}, [Suspect("a", "cat", "dog", 0, 0, 1.5)], "suspect 'a' has outlier 1.5; expected a number from 0 to 1"),
        (
            {},
            [Suspect("a", "cat", "dog", 0, 0, 0)] * 2,
            "two suspects have the id 'a'; decisions are kept by id, give each its own",
        ),
        (
            {"pair_counts": [[0, 0], [0, 0]]},
            [],
            "summary.pair_counts has 2 rows of [2] numbers; expected 3 × 3, one for each class",
        ),
        ({"quality_counts": [0] * 39}, [], "summary.quality_counts has 39 bins; expected 40"),
    ],
)
def test_mistakes_leave_the_old_report(
    tmp_path: Path, changes: dict[str, Any], suspects: Iterable[Suspect], message: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text("the old one")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        write_report(path, summary(**changes), suspects)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report.html", "the old one")]


# ---- the page in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


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


def test_head_says_how_noisy_and_how_sure(browser: Any, tmp_path: Path) -> None:
    with visit(browser, report(tmp_path, pets(30), issues=70)) as page:
        assert page.title() == "pets – label review"
        assert page.inner_text("#headline") == "About 1 in 8 labels looks wrong (10–14\u00a0%)"
        assert page.inner_text("#facts").split("\n") == [
            *("labels", "1,000", "in 3 classes", "suspects", "70", "the 30 most suspicious are below"),
            *("trusted", "40", "known to be right"),
            *("accuracy, before → after", "86.1\u202f% → 94.3\u202f%", "on 40 trusted samples held out"),
        ]
    with visit(browser, report(tmp_path, pets(30), accuracy_before=None, accuracy_after=None)) as page:
        assert "accuracy" not in page.inner_text("#facts")


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
        assert page.inner_text("#shown") == "5 of 26 suspects"
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
        page.fill("#filter-id", "OWL/0011")
        assert ids(page) == ["owl/0011.jpg"]
        page.fill("#filter-id", "nothing")
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
        page.click("#filter-id")
        page.keyboard.type("dokau?")
        assert page.input_value("#filter-id") == "dokau?"
        assert (counter(page), page.is_visible("#keys")) == ("0 of 6 decided", False)
        page.fill("#filter-id", "")
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
        Suspect(f"{bad}/{i}", classes[i], classes[(i + 1) % 5], 0.1, 0.9, 0.9, text=bad, fields={bad: classes[2]})
        for i in range(5)
    ]
    path = report(tmp_path, suspects, classes, source=bad, command=bad, version=bad, accuracy_on=bad)
    with visit(browser, path) as page:
        assert page.inner_text("#source") == bad
        assert page.inner_text(".card .text") == bad
        assert page.inner_text(".card .given b") == bad
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
    suspects = [*pets(6), Suspect("odd", "cat", "dog", 0.1, 0.9, 0.8, text="belongs nowhere")]
    path = report(tmp_path, suspects, transition_matrix=shades)
    with visit(browser, path, color_scheme=scheme) as page:
        dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((part) => part < 60)"
        for _ in range(2):
            assert page.evaluate(dark) == (scheme == "dark")
            to_list(page)
            press(page, "k a d o")
            page.keyboard.type("something else")
            assert min(ratio for ratio, text in page.evaluate(CONTRASTS) if text) >= 4.5
            press(page, "Enter")
            low = [(ratio, text) for ratio, text in page.evaluate(CONTRASTS) if ratio < 4.5]
            assert low == []
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


def test_five_thousand_suspects_stay_smooth(browser: Any, tmp_path: Path) -> None:
    pictures = [jpeg(54, seed) for seed in range(20)]
    assert 2500 < statistics.mean(map(len, pictures)) < 3500
    suspects = [
        Suspect(f"{i:04d}.jpg", PETS[i % 3], PETS[(i + 1) % 3], i / 5000, 0.9, 0.1, image=pictures[i % 20])
        for i in range(5000)
    ]
    with visit(browser, report(tmp_path, suspects)) as page:
        ready = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
        loads = [page.evaluate(ready)]
        page.reload()
        loads.append(page.evaluate(ready))
        assert min(loads) < 1500
        to_list(page)
        times = page.evaluate(
            """async () => {
              const times = [];
              for (let i = 0; i < 50; i += 1) {
                const start = performance.now();
                const press = new KeyboardEvent('keydown', { key: 'kad'[i % 3], bubbles: true });
                document.activeElement.dispatchEvent(press);
                await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
                times.push(performance.now() - start);
              }
              return times;
            }"""
        )
        assert counter(page) == "50 of 5,000 decided"
        assert statistics.median(times) < 50
        page.keyboard.press("Control+End")
        until(page, "[...document.querySelectorAll('.card .id')].at(-1).textContent === '4999.jpg'")
        assert page.locator(".card").count() < 60
        picture = page.locator(".card img").last
        assert picture.get_attribute("src") == f"data:image/jpeg;base64,{b64encode(pictures[19]).decode()}"
        assert picture.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 54
