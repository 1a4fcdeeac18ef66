"""Randomness comes in as a `torch.Generator`; the global generators are borrowed and given back as they were."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def draw_seed(generator: torch.Generator) -> int:
    """A seed for one forward pass."""
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Run a block with the global generators of the CPU and `device` at `seed`.

    Dropout and weight initialisation know only the global generators. Two blocks with one seed draw the same
    masks, and afterwards the generators stand where the user left them.
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
