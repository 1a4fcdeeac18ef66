"""`vri doctor`: true numbers, a failed check is a failed command, and nothing private in the text."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
import torch

import vri
from vri.cli import checkup as doctor
from vri.cli import main
from vri.core.bilevel import HYPERGRADIENTS

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home" / "jane"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("VRI_DATA", raising=False)
    monkeypatch.setattr(doctor, "NEEDED_SPACE", 1)
    monkeypatch.setattr(doctor, "_bfloat16_answer", lambda device, settings: (True, "cosine 0.99999 with float32"))
    monkeypatch.chdir(folder)
    return folder


def test_all_is_well_here(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["well"] is True
    assert found["about"]["vri"] == vri.__version__
    assert found["about"]["torch"] == torch.__version__
    assert found["about"]["numpy"] == np.__version__
    assert found["about"]["scikit-learn"] == sklearn.__version__
    assert found["data"]["digits"].endswith("digits.csv.gz")
    assert found["data"]["clothing1m"] is None
    checks = {check["name"]: check["detail"] for check in found["checks"]}
    assert set(checks) >= {
        "data folder",
        "current folder",
        "forward-mode meta gradient on cpu",
        "finite differences on cpu",
        "bfloat16 autocast on cpu",
    }
    assert checks["data folder"].startswith("~/.cache/vri, to be made in ~ can be written to, ")
    assert checks["current folder"].startswith("~ can be written to, ")
    assert os.listdir(home) == []  # it looks and leaves nothing


def test_text_is_one_block_without_secrets(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "meta_gradient_checks", lambda device: [])
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("VRI_DATA", str(home / "sets"))
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    assert str(home) not in text
    assert "jane" not in text
    assert "VRI_DATA=~/sets" in text
    assert "ok      data folder: ~/sets, to be made in ~ can be written to, " in text
    assert text.endswith("\n\nall is well\nIn a bug report, please paste all of the above.\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{home}", "~"), ("{home}/a", "~/a"), ("a={home}, b={home}/c", "a=~, b=~/c"), ("{home}2/a", "{home}2/a")],
)
def test_tilde(text: str, expected: str, home: Path) -> None:
    assert doctor.tilde(text.format(home=home)) == expected.format(home=home)


@pytest.mark.parametrize("name", ["jvp", "finite_difference"])
def test_a_wrong_meta_gradient_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = HYPERGRADIENTS[name]

    def off(*arguments: Any) -> list[torch.Tensor]:
        return [1.001 * gradient for gradient in right(*arguments)]

    monkeypatch.setitem(HYPERGRADIENTS, name, off)
    checks = doctor.meta_gradient_checks(CPU)
    wrong = {"jvp": "forward-mode meta gradient on cpu", "finite_difference": "finite differences on cpu"}[name]
    assert {check.name: check.ok for check in checks} == {check.name: check.name != wrong for check in checks}
    assert next(c.detail for c in checks if not c.ok) == "off by 1e-03 from double backpropagation (float64)"


def test_a_build_without_forward_mode_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("Trying to use forward AD with aten::broken that does not support it")

    monkeypatch.setattr("torch._make_dual", missing)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "FAILED  forward-mode meta gradient on cpu: RuntimeWarning: forward-mode differentiation is not" in text
    assert "ok      finite differences on cpu: " in text
    assert f"\n{1 + torch.cuda.device_count()} of " in text


ANSWER = doctor._bfloat16_answer


@pytest.mark.parametrize(
    ("code", "out", "err", "expected"),
    [
        (0, "0.9991\n", "", (True, "cosine 0.99910 with float32")),
        (0, "0.2\n", "", (False, "cosine 0.20000 with float32")),
        (1, "", "Traceback\n  line\nRuntimeError: no primitive\n", (False, "RuntimeError: no primitive")),
        (1, "", "", (False, "failed without a word")),
        (-4, "", "", (False, "torch crashed with signal 4")),
    ],
)
def test_answers_about_bfloat16(
    code: int, out: str, err: str, expected: tuple[bool, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], code, out, err))
    assert ANSWER(CPU, {}) == expected


def test_what_helps_bfloat16_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_bfloat16_answer", lambda device, settings: (bool(settings), "RuntimeError: no"))
    assert doctor.bfloat16_check(CPU) == doctor.Check(
        "bfloat16 autocast on cpu",
        False,
        "RuntimeError: no; it works with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment",
    )


@pytest.mark.slow
def test_bfloat16_is_asked_in_a_process_of_its_own() -> None:
    ok, detail = ANSWER(CPU, {"ONEDNN_MAX_CPU_ISA": "AVX2"})  # kernels that work everywhere
    assert (ok, detail[:10]) == (True, "cosine 0.9"), detail


def test_a_folder_that_is_full_or_closed_is_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NEEDED_SPACE", 2**60)
    check = doctor.writing_check("current folder", home)
    assert (check.ok, check.detail.endswith(" GB free")) == (False, True)

    def closed(**_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", closed)
    check = doctor.writing_check("current folder", home)
    assert (check.ok, check.detail) == (False, f"{home} can't be written to (Permission denied)")


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    doctor.meta_gradient("jvp", CPU, torch.float64)
    assert torch.equal(torch.get_rng_state(), before)
