"""bfloat16 on CPUs: find out whether torch's kernels for it work here, and avoid those that don't.

On some processors with AMX, torch's bfloat16 convolutions crash the process with an illegal instruction. oneDNN, which
provides these kernels, doesn't use AMX if an environment variable says so before its first use.
"""

import os
import platform
import subprocess
import sys
from functools import cache

import torch

VARIABLE, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
_PATIENCE = 120  # seconds; the machine may be busy

# Strided and plain convolutions, forward and backward, in both layouts: what a training step calls.
_TRIAL = """
import torch
for layout in (torch.channels_last, torch.contiguous_format):
    layers = [torch.nn.Conv2d(16, 32, 3, 2, 1), torch.nn.Conv2d(32, 32, 3, 1, 1), torch.nn.Conv2d(32, 64, 1, 2)]
    model = torch.nn.Sequential(*layers).to(memory_format=layout)
    images = torch.randn(4, 16, 9, 9).contiguous(memory_format=layout).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(images).float().square().mean()
    loss.backward()
"""


def suits_bfloat16(device: torch.device) -> bool:
    """Whether training in bfloat16 is faster than in float32: with instructions for it, not where it is emulated."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    allowed = os.environ.get(VARIABLE, "ALL").upper()  # oneDNN may be told not to use what the processor has
    known = _has("_is_amx_tile_supported") or _has("_is_avx512_bf16_supported")
    return device.type == "cpu" and known and any(word in allowed for word in ("ALL", "DEFAULT", "BF16", "FP16", "AMX"))


def prepare_bfloat16(device: torch.device) -> str | None:
    """Make bfloat16 convolutions safe in this process, before its first one; return a remark for the user or None.

    On a processor with AMX, a new process tries them once. If it crashes, AMX is switched off for oneDNN, here and in
    all processes started from now on. If the user has set the variable, nothing is tried.
    """
    if device.type != "cpu":
        return None
    if not _has("_is_amx_tile_supported"):
        return _slow()
    if VARIABLE in os.environ or _works(""):
        return None
    if not _works(WITHOUT_AMX):
        raise RuntimeError(
            "torch's bfloat16 convolutions crash on this processor, "
            f"even with {VARIABLE}={WITHOUT_AMX}; train in float32: precision=fp32, or autocast=None"
        )
    os.environ[VARIABLE] = WITHOUT_AMX
    return (
        "torch's bfloat16 convolutions with AMX crash on this processor: continuing without AMX. If the process "
        "still dies of an illegal instruction, a convolution ran before this check; then start it with "
        f"{VARIABLE}={WITHOUT_AMX} in the environment"
    )


@cache
def _works(instructions: str) -> bool:
    """Whether a process limited to these instructions (unlimited if empty) survives bfloat16 convolutions."""
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if instructions:
        env[VARIABLE] = instructions
    try:
        done = subprocess.run([sys.executable, "-c", _TRIAL], env=env, capture_output=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return True  # a busy machine, not a broken one
    return done.returncode >= 0  # below 0: ended by a signal


def _slow() -> str | None:
    """A remark if this processor has no bfloat16 instructions and torch has to emulate them."""
    if platform.machine() not in ("x86_64", "AMD64") or _has("_is_avx512_bf16_supported"):
        return None
    return "this processor has no bfloat16 instructions, torch emulates them: precision=fp32 is likely to be faster"


def _has(question: str) -> bool:
    """What torch knows about the processor; not part of its public interface, so it may be missing."""
    ask = getattr(torch.cpu, question, None)
    return ask is not None and bool(ask())
