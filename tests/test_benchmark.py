"""The benchmark: its table and file on made-up numbers, its arithmetic, and a real run in small. No timings."""

import json
import math
import signal
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from vri import bench
from vri.backbones import mlp
from vri.bench import MEASURES, accuracy, format_table, memory, run_benchmark, small, timing
from vri.bench.report import Bar, Measurement, Report
from vri.bench.timing import (
    Layout,
    Sizes,
    measure_overhead,
    measure_time,
    one_thread,
    take_turns,
)
from vri.cli import main
from vri.core.bilevel import HYPERGRADIENTS
from vri.core.checks import Batch
from vri.methods import VRI, CrossEntropy
from vri.methods.base import Metrics

TINY = Sizes(
    batch=4,
    image=8,
    rounds=2,
    periods=1,
    extra_rounds=1,
    memory_runs=1,
    memory_steps=1,
    overhead_steps=3,
    embeddings=100,
)


def made_up() -> Report:
    rows = [
        Measurement("step time", "cross-entropy itself", [120.0, 100.0, 140.0], "ms"),
        Measurement("step time", "jvp", [3.0, 3.1, 2.9, 3.5], "", Bar("<=", 3.8)),
        Measurement("step time", "backprop / jvp", [1.25], "", Bar(">=", 1.4)),
        Measurement("meta gradient", "MLP: jvp", [2e-16], "", Bar("<=", 1e-10)),
    ]
    return Report({"processor": "abacus", "cores": 2}, {"quick": False}, rows, {"time": {"jvp": [0.3]}}, 12.4)


def test_table_of_a_report() -> None:
    assert format_table(made_up()).splitlines() == [
        "processor: abacus",
        "cores: 2",
        "quick: False",
        "",
        "measurement             value    quartiles    bar       met?",
        "----------------------  -------  -----------  --------  ------",
        "step time",
        "  cross-entropy itself  120 ms   110 … 130",
        "  jvp                   3.05     2.98 … 3.20  <= 3.8    met",
        "  backprop / jvp        1.25                  >= 1.4    missed",
        "meta gradient",
        "  MLP: jvp              2.0e-16               <= 1e-10  met",
        "",
        "2 of 3 bars met; 12 s",
        "missed: step time: backprop / jvp: 1.25, bar >= 1.4",
    ]


def test_missed_holds_the_rows_below_their_bar_and_those_not_measured() -> None:
    report = made_up()
    report.rows.append(Measurement("step time", "lost", [], "", Bar("<=", 1.0), "the process died"))
    assert [row.name for row in report.missed] == ["backprop / jvp", "lost"]
    assert "  lost                  none                  <= 1      missed  (the process died)" in format_table(report)


@pytest.mark.parametrize(
    ("sign", "below", "equal", "above"),
    [("<=", True, True, False), ("<", True, False, False), (">=", False, True, True)],
)
def test_bars(sign: str, below: bool, equal: bool, above: bool) -> None:
    bar = Bar(sign, 2.0)
    assert [bar.met(1.0), bar.met(2.0), bar.met(3.0)] == [below, equal, above]
    assert not bar.met(math.nan)  # a measurement that failed meets nothing


def test_file_has_the_report(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "bench.json"
    made_up().save(path)
    content = json.loads(path.read_text())
    assert content["machine"] == {"processor": "abacus", "cores": 2}
    assert content["raw"] == {"time": {"jvp": [0.3]}}
    found = [(r["name"], r["samples"], r["value"], r["met"]) for r in content["rows"]]
    assert found == [
        ("cross-entropy itself", [120.0, 100.0, 140.0], 120.0, None),
        ("jvp", [3.0, 3.1, 2.9, 3.5], 3.05, True),
        ("backprop / jvp", [1.25], 1.25, False),
        ("MLP: jvp", [2e-16], 2e-16, True),
    ]
    assert [p.name for p in path.parent.iterdir()] == ["bench.json"]  # no temporary file is left


def test_unknown_part_is_named_with_those_that_exist() -> None:
    with pytest.raises(
        ValueError,
        match=r"^only=speed is no part of the benchmark: expected accuracy, time, memory, overhead, small, data$",
    ):
        run_benchmark(only=["speed"])


def test_ctrl_c_keeps_the_parts_that_are_done(tmp_path: Path) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    done = Measurement("a heading", "a name", [1.0, 2.0, 3.0])
    measures: Any = {"first": lambda *_: ([done], {}), "second": interrupted, "third": interrupted}
    report = run_benchmark(out=tmp_path / "bench.json", measures=measures)
    assert report.rows == [done]
    assert report.settings["stopped during"] == "second"
    assert [row["name"] for row in json.loads((tmp_path / "bench.json").read_text())["rows"]] == ["a name"]
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(measures={"second": interrupted})


def test_the_command_shows_what_was_measured_and_that_it_was_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    parts = {"accuracy": lambda *_: ([Measurement("a heading", "a name", [1.0])], {}), "time": interrupted}
    monkeypatch.setattr(bench, "MEASURES", parts)
    assert main(["bench"]) == 130
    out, err = capsys.readouterr()
    assert "a name" in out
    assert "stopped during: time" in out
    assert err.endswith("\nstopped\n")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of the long measurements made up, and those of processes computed here."""

    def attempt(function: str, request: dict[str, Any]) -> tuple[Any, str]:
        return ({"jvp": 0.995, "finite_difference": 0.9} if function.endswith("cosines") else None), "not tried"

    monkeypatch.setattr(accuracy, "attempt", attempt)


@pytest.mark.usefixtures("short")
def test_accuracy_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = torch.get_rng_state()
    report = run_benchmark(quick=True, only=["accuracy"], out=tmp_path / "bench.json")
    assert torch.equal(torch.get_rng_state(), rng)
    assert capsys.readouterr().err == "vri bench: accuracy ...\n"
    assert not report.missed
    barred = [row for row in report.rows if row.bar is not None and "bfloat16" not in row.heading]
    assert len(barred) == 8  # four networks, two ways
    assert all(math.isfinite(row.value) for row in report.rows)
    # not zero: the ways are really different computations
    assert all(row.value > 0 for row in barred if "finite_difference" in row.name)
    assert len(json.loads((tmp_path / "bench.json").read_text())["rows"]) == len(report.rows)


@pytest.mark.usefixtures("short")
def test_accuracy_notices_a_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long(*arguments: Any) -> Any:
        return [1.5 * gradient for gradient in right(*arguments)]

    right = HYPERGRADIENTS["jvp"]
    monkeypatch.setitem(HYPERGRADIENTS, "jvp", too_long)
    networks = {"MLP with dropout": accuracy.NETWORKS["MLP with dropout"]}
    monkeypatch.setattr(accuracy, "NETWORKS", networks)
    missed = run_benchmark(quick=True, only=["accuracy"], progress=False).missed
    assert [row.name for row in missed] == ["MLP with dropout: jvp"]
    assert missed[0].value == pytest.approx(0.5)


def test_methods_take_turns_and_periods_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that moves by the cost a method names, ratios are known exactly."""
    now, log = [0.0], []

    class Costly(CrossEntropy):
        def __init__(self, name: str, costs: list[float]) -> None:
            model = mlp(2, 2, hidden=(), seed=0)
            super().__init__(model, 2, torch.optim.SGD(model.parameters(), lr=0.1))
            self.name, self.costs, self.steps = name, costs, 0

        def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
            now[0] += self.costs[self.steps % len(self.costs)]
            self.steps += 1
            log.append(self.name)
            return {}

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    methods = {"plain": Costly("plain", [1.0]), "every second": Costly("every second", [5.0, 1.0])}
    seconds = take_turns(methods, None, None, rounds=3, steps=2)
    assert log == ["plain", "every second"] + ["plain", "every second", "every second", "plain"] * 3
    assert seconds == {"plain": [1.0] * 3, "every second": [3.0] * 3}
    # the budget ends it early, but never before two rounds
    assert {len(s) for s in take_turns(methods, None, None, rounds=9, steps=2, budget=0.0).values()} == {2}


def test_time_in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh(function: str, request: dict[str, Any]) -> Any:
        if request["layout"]["bfloat16"]:  # as where torch's kernels crash
            raise subprocess.CalledProcessError(-signal.SIGILL, "python")
        return timing.other_layout(request)  # saves the start of a process

    monkeypatch.setattr(timing, "in_a_fresh_process", fresh)
    monkeypatch.setattr(timing, "PERIOD", 2)
    with one_thread():
        rows, raw = measure_time(TINY, "cpu")
    died = raw.pop("channels_last bfloat16 autocast, pairs of steps")
    assert died.startswith("not measured: torch ended the process with SIGILL; ")
    assert len(raw) == 3  # single steps, periods, the other layout
    assert all(math.isfinite(v) and v > 0 for table in raw.values() for values in table.values() for v in values)
    assert {row.name: str(row.bar) for row in rows if row.bar} == {
        "jvp": "<= 3.3",
        "finite_difference": "<= 3.2",
        "backprop / jvp": ">= 1.4",
        "samples=5 / samples=1": "<= 1.15",
        "meta_every=5": "<= 1.7",
        "meta_every=10": "<= 1.4",
        "defaults": "<= 2.5",
    }
    assert list(dict.fromkeys(row.heading for row in rows)) == [
        f"step time, {layout}, cross-entropy = 1"
        for layout in ("channels_last float32", "contiguous float32", "channels_last bfloat16 autocast")
    ]
    assert (rows[-1].samples, rows[-1].note) == ([], died)
    assert died in format_table(Report({}, {}, rows))


def test_layouts_are_what_they_say() -> None:
    for layout in (Layout(), Layout(channels_last=False), Layout(bfloat16=True)):
        images, _ = timing.images(TINY, layout, "cpu")
        method = timing.resnet_method("jvp", layout, "cpu")
        assert isinstance(method, VRI)
        for tensor in (images, method.model[5].conv1.weight):  # type: ignore[index]
            assert tensor.is_contiguous(memory_format=torch.channels_last) == layout.channels_last
        assert method.classifier.autocast == (torch.bfloat16 if layout.bfloat16 else None)


def test_overhead_is_divided_and_nothing_stays_patched() -> None:
    before = [torch.autograd.grad, torch.get_num_threads()]
    rows, raw = measure_overhead(TINY, "cpu")
    assert before == [torch.autograd.grad, torch.get_num_threads()]
    inside = raw["seconds inside"]
    assert list(inside) == ["networks, forward", "loss equations", "autograd calls", "optimizer steps", timing.REST]
    assert all(min(values) > 0 for values in inside.values())  # every one was met in every step
    assert [row.name for row in rows[-5:]] == list(inside)


def test_memory_of_every_variant_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {"cross-entropy": 100, "jvp": 200, "finite_difference": 150, "backprop": 400, "defaults": 250}

    def fresh(function: str, request: dict[str, Any], env: dict[str, str]) -> int:
        assert (function, env) == ("vri.bench.memory:peak_of_a_step", memory.ALLOCATOR)
        assert memory.peak_of_a_step(request) >= 0  # here, which saves the start of a process
        return used[request["name"]]

    monkeypatch.setattr(memory, "in_a_fresh_process", fresh)
    rows, raw = memory.measure_memory(TINY, "cpu")
    assert raw["bytes"] == {name: [bytes_] for name, bytes_ in used.items()}
    assert [row.value for row in rows[1:]] == [2.0, 1.5, 4.0, 2.5, 0.5]
    assert {row.name: str(row.bar) for row in rows if row.bar} == {"jvp": "<= 2.2", "jvp / backprop": "< 1"}


def test_bfloat16_points_the_same_way_as_float32() -> None:
    found = accuracy.cosines({"sizes": asdict(replace(TINY, batch=16, image=16)), "device": "cpu"})
    assert list(found) == ["jvp", "finite_difference"]
    assert 0.9 < found["jvp"] < 1  # equal to 1 would be the same computation


def test_small_networks_and_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "VRIClassifier": {"seconds": 3.0, "precision": 0.9},
        "CleanLearning(LogisticRegression())": None,  # as where it is not installed
    }

    def attempt(function: str, request: dict[str, Any]) -> tuple[Any, str]:
        if function.endswith("steps_of_fast"):
            assert "channels" not in request
            return {"cross-entropy": [0.1, 0.2], "defaults": [0.3, 0.3]}, ""
        assert function == "vri.bench.small:judge_embeddings"
        assert request["count"] == TINY.embeddings
        return answers[request["name"]], ""

    monkeypatch.setattr(small, "attempt", attempt)
    rows, raw = small.measure_small(TINY, "cpu")
    values = {row.name: (row.value, row.note) for row in rows}
    assert values["cross-entropy, an epoch of 50,000 images"] == (pytest.approx(50_000 / TINY.batch * 0.15), "")
    assert values["defaults, cross-entropy = 1"] == (pytest.approx(2.25), "")
    assert values["VRIClassifier"] == (3.0, "")
    assert values["VRIClassifier: average precision"] == (0.9, "")
    missing = values["CleanLearning(LogisticRegression())"]
    assert missing == (None, "not measured: pip install cleanlab provides it")
    assert list(raw["MLP"]) == ["cross-entropy", "defaults", "hidden=(1024, 512)"]
    assert {row.name: str(row.bar) for row in rows if row.bar} == {"defaults": "<= 3.5"}


def test_embeddings_of_the_benchmark_are_as_described() -> None:
    x, given, wrong = small.embeddings(3000)
    assert (x.shape, x.dtype, given.shape) == ((3000, 512), np.float32, (3000,))
    assert abs(wrong.mean() - 0.2) < 0.03
    # learnable, but not separable: a linear classifier fitted to right labels makes mistakes on others
    right = LogisticRegression(max_iter=300).fit(x[:2000][~wrong[:2000]], given[:2000][~wrong[:2000]])
    score = right.score(x[2000:][~wrong[2000:]], given[2000:][~wrong[2000:]])
    assert 0.6 < score < 0.99


def test_measures_are_those_of_the_command_line() -> None:
    assert list(MEASURES) == ["accuracy", "time", "memory", "overhead", "small", "data"]
