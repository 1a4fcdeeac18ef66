"""Pages made of blocks, each written by a command of its own."""

from pathlib import Path

from vri.files import atomic_write


def replace_block(path: Path, name: str, text: str, title: str) -> None:
    """Put `text` in the place of the block called `name`, or at the end; a new page begins with `title`."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    page = path.read_text(encoding="utf-8") if path.exists() else f"# {title}\n"
    block = f"{begin}\n{text.strip()}\n{end}"
    head, found, rest = page.partition(begin)
    if found:
        _, closed, tail = rest.partition(end)
        if not closed:
            raise ValueError(f"{path} has a line {begin} without {end}; expected both: add it, or delete the block")
        page = head + block + tail
    else:
        page = f"{page.rstrip()}\n\n{block}\n"
    with atomic_write(path) as file:
        file.write(page.encode())


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
