from pathlib import Path

import pytest

from vri.paper.report import markdown_table, replace_block


def test_blocks_are_written_and_replaced_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    replace_block(page, "a", "first\n", "Results")
    replace_block(page, "b", "second", "not used any more")
    replace_block(page, "a", "new", "not used any more")
    assert page.read_text() == (
        "# Results\n\n<!-- begin a -->\nnew\n<!-- end a -->\n\n<!-- begin b -->\nsecond\n<!-- end b -->\n"
    )
    page.write_text("words of mine\n<!-- begin a -->\nx\n<!-- end a -->\nmore words\n")
    replace_block(page, "a", "y", "")
    assert page.read_text() == "words of mine\n<!-- begin a -->\ny\n<!-- end a -->\nmore words\n"


def test_a_block_without_an_end(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin a -->\nx\n")
    with pytest.raises(ValueError, match="without <!-- end a -->; expected both: add it, or delete the block"):
        replace_block(page, "a", "y", "")
    assert page.read_text() == "<!-- begin a -->\nx\n"


def test_table() -> None:
    assert markdown_table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
