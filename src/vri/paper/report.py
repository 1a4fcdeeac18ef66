"""Results as tables for the terminal, Markdown, CSV and LaTeX, as figures, and as blocks of a page."""

import csv
import io
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from vri.files import atomic_write
from vri.paper.estimate import duration
from vri.paper.experiments import Results, TableRow
from vri.paper.published import Published, published
from vri.paper.verdicts import mark, step_times

TITLE = "Results on real data"

_LATEX = {"±": r"$\pm$", "▲": r"$\blacktriangle$", "▼": r"$\blacktriangledown$", "−": "--", "–": "--", "%": r"\%"}
_LATEX |= {"λ": r"$\lambda$", "σ²": r"$\sigma^2$", "&": r"\&", "_": r"\_", "#": r"\#", "γ": r"$\gamma$"}


@dataclass(frozen=True)
class Sheet:
    """A table of texts, and the notes below it."""

    header: list[str]
    body: list[list[str]]
    notes: list[str]

    def text(self) -> str:
        """Aligned, for a terminal."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.body, strict=True)]
        return aligned([self.header, ["-" * w for w in widths], *self.body])

    def markdown(self) -> str:
        """With its notes."""
        return "\n\n".join([markdown_table(self.header, self.body), *self.notes])

    def latex(self, caption: str) -> str:
        """A table for a paper, with the package booktabs."""
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(caption)}}}",
            rf"\begin{{tabular}}{{l{'c' * (len(self.header) - 1)}}}",
            r"\toprule",
            " & ".join(map(_latex, self.header)) + r" \\",
            r"\midrule",
            *(" & ".join(map(_latex, row)) + r" \\" for row in self.body),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join([*lines, *(f"% {note}" for note in self.notes)]) + "\n"


def sheet(results: Results) -> Sheet:
    """The table: measured columns, each marked with its scale, then the published ones."""
    printed = published(results.experiment.name)
    headings = list(dict.fromkeys(p.column for p in printed))
    timed = results.experiment.examine == "step-time"
    times = ["step, cross-entropy = 1", "step (ms)"] if timed else []
    minutes = ["published: min per epoch"] if any(p.minutes for p in printed) else []
    header = [
        "method",
        *(f"{results.scale}: {c}" for c in results.columns),
        *times,
        *(f"published: {h}" for h in headings),
        *minutes,
    ]
    body, used = [], set()
    for row in results.grid.rows:
        own = [p for p in printed if _belongs(p, row)]
        used |= {id(p) for p in own}
        cells = [cell(results, row.label, column) for column in results.columns]
        if timed:
            ratio, milliseconds = step_times(results, row.label)
            cells += [f"{ratio:.2f}", f"{milliseconds:.1f}"] if ratio == ratio else ["–", "–"]
        body.append([row.label, *cells, *_printed(own, headings, bool(minutes))])
    body += _only_published([p for p in printed if id(p) not in used], headings, header, bool(minutes))
    return Sheet(header, body, _notes(results, printed))


def cell(results: Results, row: str, column: str) -> str:
    """Mean ± sd of the last epoch, in brackets the mean of the last ten; marked if it differs from the reference."""
    records = results.records(row, column)
    failed = sum("failed" in r for r in records)
    values = results.scores(row, column, "last")
    if not values:
        return "diverged" if failed else "–"
    recent = statistics.mean(results.scores(row, column, "last_10_mean"))
    wanted, chosen, decided = results.seeds_of(column), results.choice(row, column), results.decided(row, column)
    words = [f"{spread(values)} ({recent:.1f})"]
    words += [f"{chosen}{'' if decided else '?'}"] if chosen is not None else []
    words += [sign] if (sign := mark(results, row, column)) else []
    words += [f"[{failed} diverged]"] if failed else []
    words += [f"[{len(values)} of {wanted} seeds]"] if len(values) + failed < wanted else []
    return " ".join(words)


def spread(values: Sequence[float]) -> str:
    """Mean ± sd."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def runs_table(results: Results) -> str:
    """Every run as a line of CSV, so that a reader can check the table."""
    kept = ("last", "last_10_mean", "noise_rate", "noise_hash", "split_hash", "seconds", "failed", "key")
    body = [
        [results.scale, row, column, r["settings"]["seed"], *(r.get(name) for name in kept)]
        for row in results.rows
        for column in results.columns
        for r in results.records(row, column)
    ]
    return as_csv(["scale", "row", "column", "seed", *kept], body)


def as_csv(header: Sequence[str], body: Sequence[Sequence[Any]]) -> str:
    """Rows as CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[_short(v) for v in row] for row in body])
    return file.getvalue()


def noise_hashes(results: Results) -> dict[str, list[str]]:
    """The noise of each column, one short hash per seed."""
    found = {}
    for column in results.columns:
        hashes = [str(r["noise_hash"])[:8] for r in results.records(results.rows[-1], column) if r.get("noise_hash")]
        if hashes:
            found[column] = hashes
    return found


def write_files(results: Results, out: Path) -> None:
    """Table and figure of an experiment as files."""
    folder = out / results.experiment.folder
    folder.mkdir(parents=True, exist_ok=True)
    table = sheet(results)
    caption = f"{results.experiment.title} ({results.scale} scale)"
    texts = {
        "table.md": table.markdown() + "\n",
        "table.csv": as_csv(table.header, table.body),
        "table.tex": table.latex(caption),
        "runs.csv": runs_table(results),
    }
    if results.experiment.draw is not None and results.complete:
        picture = results.experiment.draw(results)
        texts["figure.csv"] = as_csv(picture.header, picture.numbers)
        for kind in ("png", "svg"):
            # no date and no random ids, so that the file stays the same if nothing changed
            with rc_context({"svg.hashsalt": "vri"}), atomic_write(folder / f"figure.{kind}") as file:
                picture.figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    for name, text in texts.items():
        with atomic_write(folder / name) as file:
            file.write(text.encode())


def block(results: Results, out: Path, page: Path, seeds: int) -> str:
    """What a page says about an experiment."""
    experiment = results.experiment
    link = Path(Path(os.path.relpath(out, page.parent)).as_posix()) / experiment.folder
    command = f"vri reproduce {experiment.name} --scale {results.scale} --seeds {seeds}"
    total = sum(r["seconds"] or 0 for r in results.found.values())
    hashes = "; ".join(f"{column}: {', '.join(h)}" for column, h in noise_hashes(results).items())
    lines = [
        f"## {experiment.name}: {experiment.title}",
        f"`{command}`. Setting: {results.grid.about}",
        f"**Claim:** {experiment.claim} **At {results.scale} scale:** {experiment.verdict(results)}",
    ]
    if experiment.draw is not None and results.complete:
        lines.append(f"![{experiment.title}]({link / 'figure.png'})")
        lines.append(f"Numbers behind it: [figure.csv]({link / 'figure.csv'}), also as [SVG]({link / 'figure.svg'}).")
    if experiment.draw is None or len(results.columns) <= 6:
        lines.append(sheet(results).markdown())
    files = ", ".join(f"[{name}]({link / name})" for name in ("table.csv", "table.tex", "runs.csv"))
    if not results.complete:
        lines.append(f"**Not complete:** {len(results.found)} runs so far; the same command resumes.")
    lines.append(f"{len(results.found)} runs, {duration(total)} of one core in all. Files: {files}. Noise: {hashes}.")
    return "\n\n".join(lines)


def write_page(results: Results, out: Path, page: Path, seeds: int) -> None:
    """Put the block of an experiment into a page, replacing an older one."""
    replace_block(page, results.experiment.name, block(results, out, page, seeds), TITLE)


def has_block(path: Path, name: str) -> bool:
    """Whether a page has a block called `name`."""
    return path.exists() and f"<!-- begin {name} -->" in path.read_text(encoding="utf-8")


def replace_block(path: Path, name: str, text: str, title: str) -> None:
    """Replace the block called `name` by `text`, or append it; a new page begins with `title`."""
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


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns, for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _belongs(p: Published, row: TableRow) -> bool:
    if row.published is None:
        return False
    wanted = dict(zip(("method", "detail", "backbone"), row.published, strict=False))
    return all(getattr(p, name) == value for name, value in wanted.items())


def _printed(own: list[Published], headings: list[str], minutes: bool) -> list[str]:
    cells = ["; ".join(p.cell for p in own if p.column == heading) or "–" for heading in headings]
    if minutes:
        cells.append(next((f"{p.minutes:g}" for p in own if p.minutes), "–"))
    return cells


def _only_published(left: list[Published], headings: list[str], header: list[str], minutes: bool) -> list[list[str]]:
    """Rows of methods that were not run."""
    groups: dict[str, list[Published]] = {}
    for p in left:
        name = ", ".join(part for part in (p.method, p.detail, p.backbone) if part)
        groups.setdefault(name, []).append(p)
    measured = len(header) - 1 - len(headings) - minutes
    return [[name, *["–"] * measured, *_printed(own, headings, minutes)] for name, own in groups.items()]


def _notes(results: Results, printed: Sequence[Published]) -> list[str]:
    seeds = "1 seed" if results.seeds == 1 else f"{results.seeds} seeds"
    shown = (
        f"Test accuracy in % at **{results.scale}** scale: mean ± sd of the last epoch over {seeds}, in brackets the "
        "mean of the last 10 epochs, or of all if there are fewer."
    )
    if results.experiment.compare is not None and results.seeds > 1:
        shown += (
            f" ▲ and ▼: better or worse than {results.experiment.compare} at the 5 % level, by a paired t-test over "
            "seeds that is not corrected for the number of comparisons."
        )
    if any(column.choices for column in results.grid.columns):
        shown += (
            " Behind it is the length that the row chose, by validation accuracy of the first seed; ? where not all "
            "lengths have been tried yet, – where nothing has run. Columns with one value have one seed."
        )
    notes = [shown]
    if printed and results.scale != "paper":
        notes.append(
            "The published columns are the paper's, at its own scale and on its own data; they can't be compared with "
            f"the {results.scale} numbers."
        )
    texts: dict[str, list[str]] = {}
    for p in printed:
        if p.note:
            texts.setdefault(p.note, []).append(f"{p.method}{', ' + p.detail if p.detail else ''} {p.accuracy:g}")
    notes += [f"\\* {', '.join(dict.fromkeys(names))}: {note}." for note, names in texts.items()]
    return notes


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text.replace("σ²", "\0")).replace("\0", _LATEX["σ²"])


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else value
