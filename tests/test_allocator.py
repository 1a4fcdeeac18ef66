"""Freed memory is kept: the system hands out no new pages for a block that was freed before."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

import vri

PAGES = 2**26 // 4096  # of a block of 64 MB
CODE = """
import resource, sys, torch
from vri.training.allocator import keep_freed_memory
kept = keep_freed_memory() if "keep" in sys.argv else None
faults = []
for _ in range(16):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**26, dtype=torch.uint8)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(kept, *faults)
"""


def new_pages(*arguments: str, **variables: str) -> tuple[str, list[int]]:
    """What the function returned, and the pages that sixteen blocks of 64 MB took, one after another."""
    home = str(Path(vri.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        env={"PYTHONPATH": home, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, *faults = done.stdout.split()
    return kept, [int(number) for number in faults]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep freed memory")
def test_freed_memory_is_used_again() -> None:
    kept, faults = new_pages("keep")
    assert kept == "True"
    # the first ones lie beside each other, until the holes that they leave are large enough
    assert max(faults[-2:]) < PAGES / 100
    # pages may be large where the system makes them so by itself; then there is nothing to show
    if "[always]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        assert min(new_pages()[1]) > PAGES / 2


def test_what_the_user_has_set_stays() -> None:
    kept, _ = new_pages("keep", MALLOC_TRIM_THRESHOLD_="131072")
    assert kept == "False"
