"""Randomness comes in as a `torch.Generator`; the global generators are borrowed and restored."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def draw_seed(generator: torch.Generator) -> int:
    """A seed for one forward pass."""
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


def derive_seed(seed: int, *path: int) -> int:
    """A different seed for each path, such as (epoch,) or (epoch, sample)."""
    mixed = np.random.SeedSequence(seed % 2**64, spawn_key=path).generate_state(1, np.uint64)[0]
    return int(mixed) >> 1  # torch accepts 63 bits everywhere


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Run a block with the global generators of the CPU and `device` at `seed`.

    Dropout and weight initialisation use only the global generators. Two blocks with the same seed draw the same masks;
    afterwards the generators are restored.
    """
    cpu = torch.default_generator
    cpu_state = cpu.get_state()
    on_cuda = device.type == "cuda"
    if on_cuda:
        index = torch.cuda.current_device() if device.index is None else device.index
        cuda = torch.cuda.default_generators[index]
        cuda_state = cuda.get_state()
        cuda.manual_seed(seed)
    cpu.manual_seed(seed)
    try:
        yield
    finally:
        cpu.set_state(cpu_state)
        if on_cuda:
            cuda.set_state(cuda_state)
