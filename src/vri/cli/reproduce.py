"""`vri reproduce`."""

import argparse
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "reproduce",
        help="the paper's tables and figures, with published numbers beside ours",
        description="Run and draw tables and figures of the paper. Runs that are done are not done again: the same "
        "command goes on where it stopped, also on several machines that share --out.",
        epilog="Example: vri reproduce tab:efficiency --jobs 2; vri reproduce all --page results.md",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="list, all, or names such as tab:flip fig:vis")
    parser.add_argument("--scale", default="quick", help="quick: slices, short schedules (default); or paper")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each cell (default 3)")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes (default 1, with all cores)")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"), help="folder for runs, tables and figures")
    parser.add_argument("--root", help="folder to look in first for data sets")
    parser.add_argument("--weights", help="file with ImageNet weights, for tab:cloth at paper scale")
    parser.add_argument("--page", type=Path, help="Markdown page to write the results into, a block each")
    parser.add_argument("--draw", action="store_true", help="run nothing: draw what is there")
    parser.add_argument("--submit", metavar="CLUSTER", help="give the runs to workers of submitit: slurm or local")
    parser.add_argument(
        "--submit-option", action="append", default=[], metavar="KEY=VALUE", help="of submitit: slurm_partition=gpu, …"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from vri.paper import suite
    from vri.paper.plan import SCALES, Results

    if options.scale not in SCALES:
        raise ValueError(f"--scale {options.scale}: expected one of {', '.join(SCALES)}")
    for name in ("seeds", "jobs"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} {getattr(options, name)}: expected 1 or more")
    out = options.out / options.scale
    if options.names == ["list"]:
        return _list(options, out / "jobs")
    chosen = []
    for experiment in suite.find(options.names):
        lacking = suite.lacking(experiment, options.scale, options.root)
        if not lacking or options.draw:
            chosen.append(experiment)
        elif "all" in options.names:
            print(f"left out: {suite.why_not(experiment, lacking)}", file=sys.stderr)
        else:
            raise ValueError(suite.why_not(experiment, lacking))
    jobs = suite.jobs_of(chosen, options.scale, options.seeds, options.root, options.weights)
    if options.submit:
        return _submit(options, jobs, out)
    if not options.draw:
        suite.run(jobs, out / "jobs", options.jobs, options.minutes)
    unfinished = 0
    for experiment in chosen:
        results = Results.read(experiment, options.scale, options.seeds, out / "jobs")
        if not results.found:
            print(f"{experiment.name}: no runs yet", file=sys.stderr)
            unfinished += 1
            continue
        suite.write(results, out)
        print(_report(results, out))
        if not results.complete:
            unfinished += 1
        elif options.page is not None:
            suite.write_page(results, out, options.page, options.seeds)
    if unfinished:
        print(f"{unfinished} of {len(chosen)} not finished; the same command goes on", file=sys.stderr)
    return 0


def _report(results: Any, out: Path) -> str:
    """What the terminal shows of an experiment."""
    from vri.paper.sheets import sheet

    experiment, table = results.experiment, sheet(results)
    heading = f"{experiment.name}: {experiment.title} ({results.scale} scale)"
    folder = out / experiment.name.replace(":", "-")
    words = [heading, "=" * len(heading), f"Setting: {results.grid.about}", "", table.text(), ""]
    words += [note.replace("**", "").removeprefix("\\") for note in table.notes]
    if results.complete:
        words += ["", f"Claim: {experiment.claim}", f"Here:  {experiment.verdict(results)}"]
    else:
        words += ["", f"{len(results.found)} runs are there; not all yet"]
    return "\n".join([*words, f"Files: {folder}/", ""])


def _list(options: argparse.Namespace, folder: Path) -> int:
    from vri.paper import suite
    from vri.paper.catalogue import EXPERIMENTS
    from vri.paper.estimate import seconds_of

    rows = [("name", "runs", "one CPU core", "data", "shows")]
    for experiment in EXPERIMENTS.values():
        jobs = suite.jobs_of([experiment], options.scale, options.seeds, options.root)
        lacking = suite.lacking(experiment, options.scale, options.root)
        names = [f"{n} (not found)" if n in lacking else n for n in experiment.datasets(options.scale)]
        time = suite.duration(sum(seconds_of(jobs, folder)))
        rows.append((experiment.name, str(len(jobs)), time, ", ".join(names), experiment.title))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(
        f"\nat {options.scale} scale, {options.seeds} seeds; times are estimates; runs of several tables are done once"
    )
    return 0


def _submit(options: argparse.Namespace, jobs: Any, out: Path) -> int:
    from vri.paper import submit, suite

    chosen: dict[str, Any] = {}
    for text in options.submit_option:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--submit-option {text}: expected KEY=VALUE, such as timeout_min=600")
        chosen[name] = int(value) if value.isdigit() else value
    print(suite.plan_text(jobs, out / "jobs", options.jobs), file=sys.stderr)
    handles = submit.submit(jobs, out / "jobs", cluster=options.submit, workers=options.jobs, options=chosen)
    print(f"{len(handles)} workers: {', '.join(str(h.job_id) for h in handles)}; logs in {out / 'jobs' / 'submitit'}")
    if options.submit == "local":
        for handle in handles:
            handle.result()
    print("when they are done: the same command with --draw in the place of --submit")
    return 0
