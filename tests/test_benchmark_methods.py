"""`vri bench --methods`: every method is measured, in a state in which it does all its work."""

import json
from pathlib import Path

import pytest
import torch

from vri.bench.methods import EVERY_STEP, LITERAL, build, variants
from vri.methods import METHODS, MetaMethod
from vri.methods.glc import GLC
from vri.methods.mslc import MSLC


def test_every_method_has_a_row_and_meta_learning_ones_more() -> None:
    names = variants()
    assert [name for name in names if not name.endswith((EVERY_STEP, LITERAL))] == list(METHODS)
    assert {name + LITERAL for name in ("vri", "mw-net", "l2rw")} <= set(names)
    assert not {name + LITERAL for name in ("emlc", "famus", "vri-teacher")} & set(names)
    assert "vri" + EVERY_STEP in names
    assert "mw-net" + EVERY_STEP not in names  # it updates at every step anyway


def test_the_listed_costs_are_the_measured_ones() -> None:
    rows = json.loads((Path(__file__).parents[1] / "benchmarks" / "results" / "bench_methods.json").read_text())["rows"]
    for name, method in METHODS.items():
        if name != "cross-entropy":  # 1 by definition
            found = [row["value"] for row in rows if row["name"] == name]
            assert [f"{value:.1f}" for value in found] == [f"{value:.1f}" for value in method.cost or ()]


@pytest.mark.parametrize("name", variants())
def test_every_variant_takes_a_step(name: str) -> None:
    method = build(name, "cpu")
    before = [p.detach().clone() for p in method.model.parameters()]
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 3, 8, 8, generator=generator), torch.arange(4)
    metrics = method.step((x, y, torch.arange(4)), (x, y))
    assert metrics["loss"] > 0 or name == "peer-loss"  # a difference of losses
    moved = [not torch.equal(a, b) for a, b in zip(before, method.model.parameters(), strict=True)]
    assert all(moved) or name in ("decoupling", "l2rw")  # these may find no sample worth a step
    if isinstance(method, MetaMethod) and name != "emlc":  # which looks several steps ahead before it has one
        assert metrics["meta_loss"] > 0


def test_methods_with_phases_are_past_the_first() -> None:
    glc, mslc = build("glc", "cpu"), build("mslc", "cpu")
    assert isinstance(glc, GLC)
    assert glc.matrix is not None
    assert isinstance(mslc, MSLC)
    assert not mslc.warming
