"""`vri reproduce`: what is run, how it is judged, and what is written."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from vri import backbones
from vri.cli import main
from vri.methods import METHODS
from vri.methods.vri_literal import PAPER
from vri.paper import report, verdicts
from vri.paper.catalogue import EXPERIMENTS, parts_of, runs_of
from vri.paper.estimate import seconds_of
from vri.paper.examine import BINS, rectification, step_time
from vri.paper.experiments import Column, Experiment, Grid, Results, TableRow
from vri.paper.grid import TABLE, Run, as_columns, results, run_grid, submit
from vri.paper.memorising import memorising
from vri.paper.overview import NAME, on_page, write_overview
from vri.paper.prepare import prepare
from vri.paper.published import published
from vri.paper.runs import RunTable
from vri.paper.settings import Settings, _mistakes, resolve
from vri.paper.training_run import build
from vri.paper.verdicts import mark, p_value

SHARED = Path(__file__).parents[2] / "shared" / "published.csv"
TINY = {"dataset": "digits", "noise": "flip", "rate": 0.4, "clean": 20, "limit": 60, "epochs": 2, "batch_size": 20}


def record(run: Run, accuracy: float) -> dict[str, Any]:
    """A result as a run leaves it, with numbers of ours."""
    epochs = [
        {"epoch": e, "loss": 2 / (e + 1), "meta_loss": 1 / (e + 1), "meta_gradient": (e + 1.0) ** -2, "variance": 3.0}
        for e in range(8)
    ]
    eye = np.eye(10)
    flipped = 0.6 * eye + 0.4 * np.roll(eye, 1, axis=1)
    examined: dict[str, Any] | None = None
    if run.examine == "rectification":
        examined = {
            "largest": 12.0,
            "before": [60 - i for i in range(BINS)],
            "after": [2 * (60 - i) if i < 30 else 1 for i in range(BINS)],
            "mean_before": 1.0 + run.settings.rate,
            "mean_after": 0.5,
            "lowered": 0.9,
            **{kind: flipped.tolist() for kind in ("true", "rectified", "classifier")},
        }
    elif run.examine == "step-time":
        examined = {"step_seconds": 0.02, "times_cross_entropy": 2.0 + 0.01 * int(run.settings.options["samples"])}
    return {
        "key": run.key,
        "settings": run.content,
        "last": accuracy,
        "last_10_mean": accuracy - 0.01,
        "noise_rate": 0.4,
        "noise_hash": f"abcdef{run.settings.seed:010d}",
        "split_hash": "0123",
        "seconds": 10.0,
        "epochs": as_columns(epochs),
        "examined": examined,
    }


def fill(folder: Path, experiment: Experiment, scale: str = "quick", seeds: int = 3) -> Results:
    """Results in which later rows are better."""
    grid = experiment.grids[scale]
    table: dict[str, dict[str, Any]] = {}
    for place, row in enumerate(grid.rows):
        for column in grid.columns:
            for seed in range(seeds):
                run = experiment.run(grid, row, column, seed)
                accuracy = 0.5 + 0.03 * place + 0.001 * seed + 0.0003 * (place * seed % 3)
                table[run.key] = record(run, accuracy)
    write(folder, table)
    return Results.read(experiment, scale, seeds, folder)


def write(folder: Path, table: dict[str, dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TABLE).write_text("".join(json.dumps(row) + "\n" for row in table.values()))


# what is run


def test_every_table_and_figure_of_the_paper_is_there() -> None:
    assert list(EXPERIMENTS) == [
        *("tab:flip", "tab:uniform", "tab:instance", "tab:cloth", "tab:openset", "tab:efficiency"),
        *("tab:metanet_structure", "tab:output_layer", "tab:non_bayesian", "tab:unif_nometa", "tab:animal"),
        *("fig:vis", "fig:collapse", "fig:robustness", "fig:more_ana2", "fig:number_k", "fig:sensitivity"),
    ]


@pytest.mark.parametrize("scale", ["quick", "medium", "paper"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_all_settings_can_be_used(name: str, scale: str) -> None:
    model = backbones.mlp(8, 10, hidden=(8,), seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    built: set[str] = set()
    experiment = EXPERIMENTS[name]
    runs = experiment.runs(scale, 1)
    grid = experiment.grids[scale]
    groups = [
        column.group
        for column in grid.columns
        for row in grid.rows
        if column.rows is None or row.label in column.rows
        for _ in column.choices or [None]
    ]
    # no two cells are the same run, unless in two panels of a figure
    assert len({(group, run.key) for group, run in zip(groups, runs, strict=True)}) == len(runs)
    for run in runs:
        assert _mistakes(run.settings) == []
        options = {k: (4, 4) if k == "hidden" else v for k, v in run.settings.options.items()}
        if (key := f"{run.settings.method} {sorted(options.items(), key=str)}") not in built:
            built.add(key)
            METHODS[run.settings.method](model, 10, optimizer, **options)  # refuses what it doesn't know


def test_the_paper_scale_is_the_papers_setting() -> None:
    settings = [run.settings for run in EXPERIMENTS["tab:flip"].runs("paper", 1)]
    ours = [s for s in settings if s.method == "vri" and s.backbone == "resnet32" and s.dataset == "cifar10"]
    assert [s.rate for s in ours] == [0.2, 0.4]
    from_file = resolve("cifar10_flip_resnet32")
    assert {**PAPER, **from_file.options} == ours[1].options
    same = {"augment": None, "method": "vri", "options": {}}  # crop and flip is the default
    assert replace(ours[1], **same) == replace(from_file, **same)


def test_a_run_that_two_tables_share_is_done_once() -> None:
    robust, convergence = EXPERIMENTS["fig:robustness"], EXPERIMENTS["fig:more_ana2"]
    both = runs_of([robust, convergence], "quick", 2, None)
    assert len(both) == len(robust.runs("quick", 2))  # 40 and 60 % are in both


def test_methods_that_must_know_the_share_of_wrong_labels_are_told_it() -> None:
    runs = [r for r in EXPERIMENTS["tab:openset"].runs("quick", 1) if r.settings.method == "co-teaching"]
    assert [r.settings.options["noise_rate"] for r in runs] == pytest.approx([0.6, 0.52])


# rows that choose their settings


def choosing() -> Experiment:
    lengths = {"short": {"epochs": 2}, "long": {"epochs": 4}}
    columns = [
        Column("a", {**TINY, "validation": 20}, choices=lengths),
        Column("b", {**TINY, "validation": 20, "rate": 0.2}, choices=lengths, seeds=1, rows=("GCE",)),
    ]
    rows = [TableRow("VRI", {"method": "vri"}), TableRow("GCE", {"method": "gce"})]
    grid = Grid(rows, columns, "digits.")
    return Experiment("tab:x", "x", "VRI wins.", {"medium": grid}, verdicts.vri_is_ahead, early=True)


def validated(run: Run, accuracy: float, validation: float) -> dict[str, Any]:
    row = record(run, accuracy)
    return row | {"epochs": row["epochs"] | {"validation_accuracy": [0.1, validation]}}


def test_other_seeds_run_with_what_the_first_has_chosen_on_validation_samples(tmp_path: Path) -> None:
    experiment = choosing()
    grid = experiment.grids["medium"]
    first = experiment.runs("medium", 3, found={})
    assert [run.settings.seed for run in first] == [0] * 6  # two rows in one column, one in the other, two lengths
    told = [(run.settings.method, run.settings.epochs) for run in first[:4]]
    assert told == [("vri", 2), ("gce", 2), ("vri", 4), ("gce", 4)]  # all short runs of a column come first
    # the better test accuracy of the short runs must not count
    found = {
        run.key: validated(run, 0.9 - 0.1 * run.settings.epochs, 0.5 + 0.1 * run.settings.epochs)
        for run in (first[0], first[2])
    }
    later = [run for run in experiment.runs("medium", 3, found=found) if run.settings.seed]
    assert [(r.settings.method, r.settings.seed, r.settings.epochs) for r in later] == [("vri", 1, 4), ("vri", 2, 4)]
    assert experiment.choice(grid, grid.rows[0], grid.columns[0], found) == ("long", True)
    assert experiment.choice(grid, grid.rows[1], grid.columns[0], found) == (None, False)
    write(tmp_path, found)
    partial = Results.read(experiment, "medium", 3, tmp_path)
    assert not partial.complete
    assert report.cell(partial, "VRI", "a") == "50.0 (49.0) long [1 of 3 seeds]"
    assert report.cell(partial, "GCE", "a") == "–"
    assert len(experiment.runs("medium", 3)) == 6 + 2 * 2  # counted beforehand

    while left := [run for run in experiment.runs("medium", 3, found=found) if run.key not in found]:
        found |= {run.key: validated(run, 0.8, 0.1 * run.settings.epochs) for run in left}
    write(tmp_path, found)
    complete = Results.read(experiment, "medium", 3, tmp_path)
    assert complete.complete
    assert len(complete.records("GCE", "a")) == 3
    assert len(complete.records("GCE", "b")) == 1


def test_the_overview_has_every_table_and_says_where_vri_stands(tmp_path: Path) -> None:
    experiment = choosing()
    experiment = replace(experiment, grids={"medium": with_rows(experiment.grids["medium"], "SCE", method="sce")})
    scores = {"vri": 0.7, "gce": 0.6, "sce": 0.8}
    found = {run.key: validated(run, scores[run.settings.method], 0.5) for run in experiment.runs("medium", 1)}
    write(tmp_path, found)
    page = tmp_path / "page.md"
    page.write_text(f"# Results\n\n<!-- begin {NAME} -->\n<!-- end {NAME} -->\n\nbelow\n")
    write_overview([Results.read(experiment, "medium", 1, tmp_path)], page, tmp_path)
    text = page.read_text()
    assert text.endswith("below\n")
    assert "| method | time | a | b |\n" in text
    assert f"| VRI | {METHODS['vri'].cost.time:.1f} | 70.0 (short) | – |\n" in text
    assert "| GCE | 1.0 | 60.0 (short) | **60.0** (short) |\n" in text
    assert "| SCE |" not in text  # it has run in one column alone
    assert "a, no other column: SCE **80.0** (short).\n" in text
    assert "first in 0 of 1 columns and not significantly behind the first in 0 more" in text
    assert "-10.0 points on average" in text
    assert "| tab:x | VRI wins. | Does not hold." in text


def test_the_overview_keeps_the_tables_that_the_page_already_has(tmp_path: Path) -> None:
    one, other, unseen, empty = (
        replace(choosing(), name=f"tab:{name}") for name in ("one", "other", "unseen", "empty")
    )
    empty = replace(empty, grids={"medium": replace(empty.grids["medium"], columns=[])})
    write(tmp_path, {run.key: validated(run, 0.7, 0.5) for run in one.runs("medium", 1)})
    page = tmp_path / "page.md"
    page.write_text("# Results\n\n<!-- begin tab:one -->\n<!-- end tab:one -->\n<!-- begin tab:empty -->\n")
    drawn = Results.read(other, "medium", 1, tmp_path)
    everything = on_page([drawn], [one, other, unseen, empty], page, tmp_path)
    assert [results.experiment.name for results in everything] == ["tab:one", "tab:other"]
    assert everything[0].found
    assert everything[1] is drawn


def test_the_page_shows_what_the_longest_schedule_does(tmp_path: Path) -> None:
    experiment = choosing()
    grid = with_rows(experiment.grids["medium"], "cross-entropy", method="cross-entropy")
    experiment = replace(experiment, grids={"medium": grid})
    scores = {"vri": [0.4, 0.8, 0.79], "gce": [0.7], "cross-entropy": [0.3, 0.9, 0.5]}
    found = {}
    for run in experiment.runs("medium", 1):
        row = validated(run, 0.5, 0.5)
        long = run.settings.epochs == 4
        test = scores[run.settings.method] if long else [0.1]
        own = {"epoch": list(range(1, len(test) + 1)), "test_accuracy": test, "memorised": [0.2 if long else 0.7]}
        if run.settings.method != "gce" or not long:  # its long schedule hasn't run
            found[run.key] = row | {"epochs": row["epochs"] | own}
    write(tmp_path, found)
    text = memorising([Results.read(experiment, "medium", 1, tmp_path)], tmp_path / "page.md", tmp_path)
    assert "| method | a |\n" in text  # b has run without cross-entropy
    assert "| VRI | 80.0 → 79.0 (20 %) |" in text
    assert "| cross-entropy | 90.0 → 50.0 (20 %) |" in text
    assert "GCE" not in text
    assert "(./curves.png)" in text
    assert (tmp_path / "curves.png").stat().st_size > 5000
    assert (tmp_path / "curves.csv").read_text().splitlines()[1:3] == ["a,cross-entropy,1,0.3", "a,cross-entropy,2,0.9"]


def with_rows(grid: Grid, *labels: str, method: str) -> Grid:
    return replace(grid, rows=[*grid.rows, *(TableRow(label, {"method": method}) for label in labels)])


def test_a_column_may_have_options_for_single_methods() -> None:
    experiment = choosing()
    grid = experiment.grids["medium"]
    column = replace(grid.columns[0], own={"gce": {"q": 0.5}})
    options = {row.label: experiment.run(grid, row, column, 0, None, "long").settings.options for row in grid.rows}
    assert options["GCE"] == {"q": 0.5}
    assert "q" not in options["VRI"]


def test_strong_views_are_for_photographs() -> None:
    """Elsewhere nothing is augmented, and a strong view would be the weak one."""
    for name in ("tab:flip", "tab:uniform", "tab:instance", "tab:cloth"):
        grid = EXPERIMENTS[name].grids["medium"]
        for column in grid.columns:
            run = [row for row in grid.rows if column.rows is None or row.label in column.rows]
            strong = [r for r in run if "augment" in r.settings or "strong_view" in r.settings.get("options", {})]
            assert not strong or column.settings["dataset"].startswith("cifar")
            assert strong or not column.label.endswith('"worse"')


def test_some_rows_and_columns_can_be_run_alone() -> None:
    (part,) = parts_of([choosing()], "medium", ["GCE"], ["b"])
    assert [(r.settings.method, r.settings.rate, r.settings.epochs) for r in part.runs("medium", 3)] == [
        ("gce", 0.2, 2),
        ("gce", 0.2, 4),
    ]


def test_a_verdict_passes_over_cells_without_runs(tmp_path: Path) -> None:
    experiment = choosing()
    runs = experiment.runs("medium", 1)
    scores = {"vri": 0.7, "gce": 0.6}
    found = {run.key: validated(run, scores[run.settings.method], 0.5) for run in runs if run.settings.rate == 0.4}
    write(tmp_path, found)
    text = experiment.verdict(Results.read(experiment, "medium", 1, tmp_path))
    assert text.startswith("Holds. VRI is ahead of all others in 1 of 1 columns.")
    more = replace(experiment, grids={"medium": with_rows(experiment.grids["medium"], *"abc", method="sce")})
    assert more.verdict(Results.read(more, "medium", 1, tmp_path)).startswith("Can't be said yet: less than half of")


# published numbers


@pytest.mark.skipif(not SHARED.exists(), reason="the paper's numbers are not beside the checkout")
def test_published_numbers_are_the_papers() -> None:
    with open(SHARED, newline="") as file:
        wanted = [(r["table"], r["dataset"], float(r["accuracy"])) for r in csv.DictReader(file)]
    found = [(p.table, p.dataset, p.accuracy) for name in EXPERIMENTS for p in published(name)]
    assert sorted(found) == sorted(
        [*wanted, ("fig:robustness", "cifar10", 86.0), ("fig:sensitivity", "cifar10", 91.07)]
    )


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_with_a_published_name_finds_its_numbers(name: str) -> None:
    for scale, grid in EXPERIMENTS[name].grids.items():
        for row in grid.rows:
            if row.published is not None:
                assert any(report._belongs(p, row) for p in published(name)) or row.label == "cross-entropy", (
                    scale,
                    row,
                )


def test_contradictions_of_the_paper_are_noted() -> None:
    flips = [p for p in published("tab:unif_nometa") if p.noise == "flip"]
    assert flips
    assert all("20 % and 40 %" in p.note for p in flips)


# judgement


def test_the_paired_test_is_that_of_scipy() -> None:
    ours, theirs = [80.1, 81.4, 79.9, 80.8], [79.0, 80.9, 79.1, 80.2]
    assert p_value(ours, theirs) == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-12)
    assert p_value([80.0], [70.0]) == 1.0  # one seed says nothing
    assert p_value([80.0, 81.0], [80.0, 81.0]) == 1.0
    assert p_value([80.0, 81.0], [70.0, 71.0]) == 0.0


def test_marks_say_better_and_worse(tmp_path: Path) -> None:
    results = fill(tmp_path, EXPERIMENTS["tab:non_bayesian"])
    column = results.columns[0]
    assert mark(results, "VRI", column) == ""  # the one that all are compared with
    assert mark(results, "MC", column) == "▲"
    assert report.cell(results, "non-Bayesian", column) == "56.1 ± 0.1 (55.1) ▲"


def test_rivals_are_compared_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    grid = Grid(
        [TableRow(name, {"method": name.lower()}) for name in ("VRI", "GCE", "SCE")], [Column("x", TINY)], "digits."
    )
    experiment = Experiment("tab:y", "", "VRI wins.", {"quick": grid}, verdicts.vri_is_ahead)
    scores = {"VRI": [0.80, 0.90, 0.91], "GCE": [0.85], "SCE": [0.79, 0.895, 0.90]}  # the first seed is hard
    table = {}
    for row in grid.rows:
        for seed, score in enumerate(scores[row.label]):
            run = experiment.run(grid, row, grid.columns[0], seed)
            table[run.key] = record(run, score)
    write(tmp_path, table)
    results = Results.read(experiment, "quick", 3, tmp_path)
    duel = verdicts.closest(results, ["VRI"], ["GCE", "SCE"], "x")
    assert duel is not None
    assert (duel.rival, duel.ours, duel.theirs, duel.level) == ("GCE", pytest.approx(80), pytest.approx(85), False)
    assert "Behind in: x (GCE 85.0, VRI 80.0)." in experiment.verdict(results)
    duel = verdicts.closest(results, ["VRI"], ["SCE"], "x")
    assert duel is not None
    assert duel.gap == pytest.approx(2.5 / 3)


def test_verdicts_follow_the_numbers(tmp_path: Path) -> None:
    later_is_better = fill(tmp_path / "a", EXPERIMENTS["tab:flip"])
    assert verdicts.vri_is_ahead(later_is_better).startswith("Holds. VRI is ahead of all others in 4 of 4 columns.")
    backwards = fill(tmp_path / "b", EXPERIMENTS["tab:non_bayesian"])
    text = EXPERIMENTS["tab:non_bayesian"].verdict(backwards)
    assert text.startswith("Does not hold. The whole order holds in 0 of 4 columns: VRI is ahead of MC in 0 of 4;")
    fastest = fill(tmp_path / "c", EXPERIMENTS["tab:efficiency"])
    assert "Five draws take 1.02 (MC) and 1.02 (VRI) times as long as one" in verdicts.efficiency(fastest)
    recovered = fill(tmp_path / "d", EXPERIMENTS["fig:vis"])
    assert verdicts.rectification(recovered).startswith("Holds for the losses, holds for the matrix.")
    steady = fill(tmp_path / "e", EXPERIMENTS["fig:collapse"])
    assert verdicts.collapse(steady).startswith("Does not hold: variance in the last epoch")  # nothing collapsed


def test_a_short_schedule_is_judged_by_its_last_epoch(tmp_path: Path) -> None:
    openset = EXPERIMENTS["tab:openset"]
    ends = {scale: fill(tmp_path / scale, openset, scale, seeds=1) for scale in ("quick", "paper")}
    for scale, end in ends.items():
        column = end.columns[0]
        [told] = end.records("VRI", column)
        assert end.mean("VRI", column) == 100 * told["last_10_mean" if scale == "paper" else "last"]


def test_a_cell_takes_the_rates_of_its_data_and_network() -> None:
    for name, network, method, rates in (
        ("tab:flip", "mlp", "mslc", (0.05, 5e-4)),
        ("tab:efficiency", "small_cnn", "vri", (0.1, 5e-4)),
        ("tab:openset", "small_cnn", "jocor", (1.0, 5e-5)),
    ):
        settings = [run.settings for run in EXPERIMENTS[name].runs("quick", 1)]
        chosen = [s for s in settings if s.method == method and s.dataset != "digits"]
        assert {(s.backbone, s.lr, s.weight_decay) for s in chosen} == {(network, *rates)}


def test_the_decay_of_the_gradient_is_its_exponent() -> None:
    assert verdicts.decay([t**-0.5 for t in range(1, 50)]) == pytest.approx(-0.5, abs=1e-12)
    assert verdicts.running_mean([4.0, 2.0, 0.0]) == [4.0, 3.0, 2.0]


def test_how_near_a_transition_matrix_is() -> None:
    assert verdicts.matrix_error([[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.4], [0.0, 1.0]]) == pytest.approx(0.2)


# what is written


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_tables_and_figures_are_written(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    results = fill(tmp_path / "quick", experiment)
    assert results.complete
    report.write_files(results, tmp_path)
    folder = tmp_path / name.replace(":", "-")
    wanted = {"table.md", "table.csv", "table.tex", "runs.csv"}
    if experiment.draw is not None:
        wanted |= {"figure.png", "figure.svg", "figure.csv"}
    assert {p.name for p in folder.iterdir()} == wanted
    with open(folder / "runs.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 3 * len(results.rows) * len(results.columns)
    with open(folder / "table.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert all(len(row) == len(rows[0]) for row in rows)
    assert all(name.startswith(("quick: ", "published: ", "method", "step")) for name in rows[0])
    tex = (folder / "table.tex").read_text()
    assert tex.count(r"\\") == len(rows)
    assert not any(c in tex.split("% Test")[0] for c in "±▲▼λσ")
    page = tmp_path / "page.md"
    report.write_page(results, tmp_path, page, 3)
    text = page.read_text()
    assert text.count(f"`vri reproduce {name} --scale quick --seeds 3`") == 1
    assert "**At quick scale:**" in text
    for link in ("table.csv", "runs.csv"):
        assert (page.parent / f"{name.replace(':', '-')}/{link}").exists()
    report.write_page(results, tmp_path, page, 3)
    assert page.read_text() == text  # a second writing changes nothing


def test_a_diverged_run_is_shown_as_one(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["tab:output_layer"]
    results = fill(tmp_path, experiment)
    grid = experiment.grids["quick"]
    table = dict(results.found)
    for seed in (0, 1):
        run = experiment.run(grid, grid.rows[2], grid.columns[0], seed)
        failed = {"last": None, "last_10_mean": None, "failed": "loss is NaN", "epochs": {}}
        table[run.key] = record(run, 0.5) | failed
    write(tmp_path, table)
    results = Results.read(experiment, "quick", 3, tmp_path)
    assert report.cell(results, "none", results.columns[0]) == "56.2 (55.2) [2 diverged]"


def test_a_run_that_diverges_is_a_result(tmp_path: Path) -> None:
    bad = Run(Settings(**{**TINY, "method": "cross-entropy", "lr": 1e30}))
    assert run_grid([bad], tmp_path)
    found = results([bad], tmp_path)[bad.key]
    assert found["last"] is None
    assert re.match(r"training diverged in epoch 1, step \d of 6: .*NaN or Inf", found["failed"])
    assert str(tmp_path) not in found["failed"]  # nobody else has that folder


# what is examined


def trained(method: str = "vri", **options: Any) -> tuple[Any, Any]:
    settings = Settings(**{**TINY, "method": method, "options": options})
    sets = prepare(settings)
    return build(settings, sets, torch.device("cpu"))[0], sets


def test_losses_and_matrices_of_a_method() -> None:
    method, sets = trained()
    seen = rectification(method, sets)
    assert sum(seen["before"]) == sum(seen["after"]) == 60
    labels, true = sets.train[1], sets.true_labels
    for i in range(10):
        assert seen["true"][i] == pytest.approx(
            [float((labels[true == i] == j).double().mean()) for j in range(10)], abs=1e-4
        )
    with torch.no_grad():
        method.model.eval()
        logits = method.model(sets.test_transform(sets.train[0], 0))
        losses = torch.nn.functional.cross_entropy(logits, labels)
    assert seen["mean_before"] == pytest.approx(float(losses), rel=1e-5)
    assert 0 <= seen["lowered"] <= 1


def test_the_time_of_a_step_is_taken() -> None:
    method, sets = trained(samples=2)
    seen = step_time(method, sets)
    assert seen["step_seconds"] > 0
    assert seen["times_cross_entropy"] > 1  # it does more


# the command


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    grid = Grid(
        [
            TableRow("cross-entropy", {"method": "cross-entropy"}, ("Baseline",)),
            TableRow("VRI", {"method": "vri"}, ("VRI",)),
        ],
        [Column("digits, flip 40 %", TINY)],
        "tiny.",
    )
    experiment = Experiment("tab:flip", "small", "VRI is ahead.", {"quick": grid, "paper": grid}, verdicts.vri_is_ahead)
    monkeypatch.setitem(EXPERIMENTS, "tab:flip", experiment)
    return experiment


def test_the_command_runs_draws_and_goes_on(
    small: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "tab:flip", "--seeds", "2", "--out", str(tmp_path), "--page", str(tmp_path / "page.md")]
    assert main([*arguments, "--minutes", "0"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("4 runs, 0 done before; about ")
    assert said.endswith("tab:flip: no runs yet\n1 of 1 not finished; the same command resumes\n")
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert said.startswith("tab:flip: small (quick scale)\n")
    assert "quick: digits, flip 40 %" in said
    assert "published: CIFAR-10, flip 20 %" in said
    assert "Claim: VRI is ahead.\nHere:  " in said
    assert (tmp_path / "page.md").exists()
    before = (tmp_path / "quick" / "runs.jsonl").stat().st_mtime_ns
    assert main(arguments) == 0
    assert "4 runs, 4 done before\n" in capsys.readouterr().err
    assert (tmp_path / "quick" / "runs.jsonl").stat().st_mtime_ns == before


def test_jobs_of_submitit_do_the_runs(small: Experiment, tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="pip install 'vri[slurm]'")
    runs = runs_of([small], "quick", 1, None)
    for job in submit(runs, tmp_path, cluster="local", processes=1, options={"timeout_min": 5}):
        job.result()
    assert results(runs, tmp_path).keys() == {run.key for run in runs}


def test_an_estimate_comes_from_runs_of_the_same_kind(small: Experiment, tmp_path: Path) -> None:
    (first, second) = runs_of([small], "quick", 1, None)
    RunTable(tmp_path / TABLE).append(record(first, 0.5) | {"seconds": 123.0})
    seconds = seconds_of([first, second], tmp_path)
    assert seconds[0] == 123.0
    assert seconds[1] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["tab:flop"],
            "'tab:flop' is no table or figure; did you mean 'tab:flip'?; expected all, list or some of tab:flip",
        ),
        (["tab:flip", "--scale", "huge"], "--scale huge: expected one of quick, medium, paper"),
        (
            ["tab:flip", "--scale", "medium", "--rows", "VRY", "--root", "."],
            "--rows 'VRY': there is no such row at medium scale; did you mean 'VRI'?; expected some of cross-entropy; ",
        ),
        (["tab:flip", "--seeds", "0"], "--seeds 0: expected 1 or more"),
        (["tab:flip", "--jobs", "0"], "--jobs 0: expected 1 or more"),
        (["tab:flip", "--minutes", "-1"], "--minutes -1: expected 0 or more"),
        (["tab:flip", "--weights", "nowhere.pth"], "--weights nowhere.pth: there is no such file; expected one with"),
        (["tab:flip", "--submit-option", "a=1"], "--submit-option without --submit: expected --submit slurm or"),
        (["tab:animal", "--scale", "paper"], "tab:animal needs animal10n (ask for the archive at"),
        (["tab:uniform", "--submit", "moon"], "--submit moon: expected one of slurm, local"),
        (
            ["tab:uniform", "--submit", "local", "--submit-option", "a"],
            "--submit-option a: expected KEY=VALUE, such as",
        ),
    ],
)
def test_wrong_calls_are_named(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *arguments, "--out", str(tmp_path)]) == 2
    assert f"vri reproduce: {message}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_list_names_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "list", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(EXPERIMENTS)]] == list(EXPERIMENTS)
