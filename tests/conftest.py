"""What all tests share."""

import os
import signal
from collections.abc import Iterator

import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that tests start


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of a busy machine wait for each other at every tiny operation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _no_encoder_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether an encoder is installed must not decide how images are read."""
    monkeypatch.setattr("vri.encoders.installed", lambda kind: False)


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Shells let what they start in the background ignore Ctrl-C; tests that send it must see it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
