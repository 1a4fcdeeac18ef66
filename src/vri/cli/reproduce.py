"""`vri reproduce`."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "reproduce",
        help="make the paper's tables and figures, with published numbers next to ours",
        description="Run and draw tables and figures of the paper. Runs that are done are not done again: the same "
        "command resumes where it stopped, also on several machines that share --out.",
        epilog="Example: vri reproduce tab:efficiency --jobs 2; vri reproduce all --page results.md",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="list, all, or names such as tab:flip fig:vis")
    parser.add_argument(
        "--scale",
        default="quick",
        help="quick: slices, short schedules, a smoke test (default); "
        "medium: long enough to memorise wrong labels, full CIFAR-10; or paper",
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each cell (default 3)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1, with all cores)")
    parser.add_argument("--rows", nargs="+", metavar="LABEL", help="run these rows only, in the order of the table")
    parser.add_argument("--columns", nargs="+", metavar="LABEL", help="run these columns only")
    parser.add_argument("--minutes", type=float, help="start no run after this many minutes")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"), help="folder for runs, tables and figures")
    parser.add_argument("--root", help="folder to look in first for data sets")
    parser.add_argument("--weights", help="file with ImageNet weights, for tab:cloth at paper scale")
    parser.add_argument("--page", type=Path, help="Markdown page to write the results into, one block each")
    parser.add_argument("--draw", action="store_true", help="run nothing: draw the existing results")
    parser.add_argument("--submit", metavar="CLUSTER", help="run on a cluster: slurm, or local to try it")
    parser.add_argument(
        "--submit-option", action="append", default=[], metavar="KEY=VALUE", help="of submitit: slurm_partition=gpu, …"
    )
    parser.set_defaults(run=_run, resumes=True)


def _run(options: argparse.Namespace) -> int:
    from vri.paper.catalogue import EXPERIMENTS, find, lacking, parts_of, runs_of, why_not
    from vri.paper.estimate import plan_text
    from vri.paper.experiments import Results
    from vri.paper.overview import on_page, write_overview
    from vri.paper.report import write_files, write_page

    submit_options = _check(options)
    out = options.out / options.scale
    if options.names == ["list"]:
        return _list(options, out)
    chosen = []
    for experiment in parts_of(find(options.names), options.scale, options.rows, options.columns):
        absent = lacking(experiment, options.scale, options.root)
        if not absent or options.draw:
            chosen.append(experiment)
        elif "all" in options.names:
            print(f"left out: {why_not(experiment, absent)}", file=sys.stderr)
        else:
            raise ValueError(why_not(experiment, absent))
    if not options.draw:
        every = runs_of(chosen, options.scale, options.seeds, options.root, options.weights)
        print(plan_text(every, out, options.jobs), file=sys.stderr, flush=True)
        if options.submit:
            return _submit(options, submit_options, _known(options, chosen, out), out)
        _run_all(options, chosen, out)
    unfinished, seen = 0, []
    for experiment in find([experiment.name for experiment in chosen]) if chosen else []:
        results = Results.read(experiment, options.scale, options.seeds, out)
        if not results.found:
            print(f"{experiment.name}: no runs yet", file=sys.stderr)
            unfinished += 1
            continue
        seen.append(results)
        write_files(results, out)
        print(_report(results, out))
        unfinished += not results.complete
        if options.page is not None and (results.complete or results.partial):
            write_page(results, out, options.page, options.seeds)
    if options.page is not None and options.scale == "medium" and seen:
        write_overview(on_page(seen, EXPERIMENTS.values(), options.page, out), options.page, out)
    if unfinished:
        print(f"{unfinished} of {len(chosen)} not finished; the same command resumes", file=sys.stderr)
    return 0


def _known(options: argparse.Namespace, chosen: Any, out: Path) -> Any:
    """The runs whose settings are known so far: later seeds of some depend on what validation chooses."""
    from vri.paper.catalogue import runs_of
    from vri.paper.grid import TABLE
    from vri.paper.runs import RunTable

    found = RunTable(out / TABLE).rows()
    return runs_of(chosen, options.scale, options.seeds, options.root, options.weights, found)


def _run_all(options: argparse.Namespace, chosen: Any, out: Path) -> None:
    """Do all runs, and then those that depend on what these have chosen."""
    from vri.paper.grid import missing, run_grid

    start = time.monotonic()
    while missing(runs := _known(options, chosen, out), out):
        spent = (time.monotonic() - start) / 60
        minutes = None if options.minutes is None else max(0.0, options.minutes - spent)
        if not run_grid(runs, out, processes=options.jobs, minutes=minutes):
            return


def _check(options: argparse.Namespace) -> dict[str, Any]:
    """Refuse wrong options before anything else; return those of submitit as a dict."""
    from vri.paper.catalogue import find
    from vri.paper.experiments import SCALES
    from vri.paper.grid import CLUSTERS

    if options.names != ["list"]:
        find(options.names)
    if options.scale not in SCALES:
        raise ValueError(f"--scale {options.scale}: expected one of {', '.join(SCALES)}")
    for name in ("seeds", "jobs"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} {getattr(options, name)}: expected 1 or more")
    if options.minutes is not None and not options.minutes >= 0:
        raise ValueError(f"--minutes {options.minutes:g}: expected 0 or more")
    if options.weights is not None and not Path(options.weights).is_file():
        raise ValueError(f"--weights {options.weights}: there is no such file; expected one with ImageNet weights")
    if options.submit is not None and options.submit not in CLUSTERS:
        raise ValueError(f"--submit {options.submit}: expected one of {', '.join(CLUSTERS)}")
    if options.submit is None and options.submit_option:
        raise ValueError("--submit-option without --submit: expected --submit slurm or --submit local, too")
    chosen: dict[str, Any] = {}
    for text in options.submit_option:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--submit-option {text}: expected KEY=VALUE, such as timeout_min=600")
        chosen[name] = int(value) if value.isdigit() else value
    return chosen


def _report(results: Any, out: Path) -> str:
    """What the terminal shows about an experiment."""
    from vri.paper.report import sheet

    experiment, table = results.experiment, sheet(results)
    heading = f"{experiment.name}: {experiment.title} ({results.scale} scale)"
    words = [heading, "=" * len(heading), f"Setting: {results.grid.about}", "", table.text(), ""]
    words += [note.replace("**", "").removeprefix("\\") for note in table.notes]
    if results.complete or results.partial:
        words += ["", f"Claim: {experiment.claim}", f"Here:  {experiment.verdict(results)}"]
    if not results.complete:
        words += ["", f"{len(results.found)} runs are there; not all yet"]
    return "\n".join([*words, f"Files: {out / experiment.folder}/", ""])


def _list(options: argparse.Namespace, folder: Path) -> int:
    from vri.paper.catalogue import EXPERIMENTS, lacking, runs_of
    from vri.paper.estimate import duration, seconds_of
    from vri.paper.report import aligned

    rows = [("name", "runs", "one CPU core", "data", "shows")]
    for experiment in EXPERIMENTS.values():
        runs = runs_of([experiment], options.scale, options.seeds, options.root)
        absent = lacking(experiment, options.scale, options.root)
        names = [f"{n} (not found)" if n in absent else n for n in experiment.datasets(options.scale)]
        time = duration(sum(seconds_of(runs, folder)))
        rows.append((experiment.name, str(len(runs)), time, ", ".join(names), experiment.title))
    print(aligned(rows))
    print(
        f"\nat {options.scale} scale, {options.seeds} seeds; times are estimates; runs of several tables are done once"
    )
    return 0


def _submit(options: argparse.Namespace, submit_options: dict[str, Any], runs: Any, out: Path) -> int:
    from vri.paper.grid import submit

    jobs = submit(runs, out, cluster=options.submit, processes=options.jobs, options=submit_options)
    print(f"{len(jobs)} jobs: {', '.join(str(job.job_id) for job in jobs)}; logs in {out / 'submitit'}")
    if options.submit == "local":
        for job in jobs:
            job.result()
    print("when they are done: the same command with --draw in the place of --submit")
    return 0
