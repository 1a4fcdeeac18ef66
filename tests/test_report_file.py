"""The review page as a file: what is written into it, and what is refused."""

import json
import weakref
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from review_pages import pets, report, summary
from vri.cleaning.report import BATCH, Neighbour, Suspect, headline, write_report


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
    near = [
        Neighbour(hostile[1], hostile[0], image=b"\xff\xd8"),
        Neighbour(hostile[2], hostile[3], text=hostile[0], fields={"x": "&", hostile[0]: "<"}),
    ]
    suspects = [
        Suspect(
            *(hostile[0], hostile[1], hostile[2], 0.12345, 1, 0),
            image=b"\xff\xd8",
            fields={"<b>": "&", "x": hostile[0]},
            others=[(hostile[3], 1e-6), (hostile[0], 0)],
            neighbours=near,
        ),
        Suspect(hostile[3], hostile[2], hostile[1], 0, 1 - 1e-6, 1, text=hostile[0], neighbours=near[1:]),
    ]
    path = report(tmp_path, suspects, hostile)
    blocks = Elements(path).blocks()
    assert blocks["suspects-0"] == [
        [hostile[0], 1, 2, 0.1235, 1, 0, None, [0, "&", 1, hostile[0]], [3, 0.0001, 0, 0], [0, 3]],
        [hostile[3], 2, 1, 0, 0.9999, 1, hostile[0], [], [], [3]],
    ]
    assert blocks["pictures-0"] == ["/9g=", None]
    assert blocks["neighbours-0"] == {  # each once, though both suspects have the second
        "seen": [[hostile[1], None, [], "/9g="], [hostile[2], hostile[0], [1, "&", 2, "<"], None]],
        "of": [[0, 1], [1]],
    }
    overview = blocks["overview"]
    assert (overview["classes"], overview["columns"], overview["kind"]) == (hostile, ["<b>", "x", hostile[0]], "image")
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


@pytest.mark.parametrize("quality", [float("nan"), float("inf")])
def test_a_page_that_fails_leaves_the_old_one(tmp_path: Path, quality: float) -> None:
    path = tmp_path / "report.html"
    path.write_text("the old one")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_report(path, summary(), [*pets(BATCH), Suspect("a", "cat", "dog", quality, 0, 0)])
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report.html", "the old one")]
