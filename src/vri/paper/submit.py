"""Workers as jobs of a cluster: Slurm through submitit, or its local executor."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vri.paper.grid import Job, work

CLUSTERS = ("slurm", "local")


def submit(
    jobs: Sequence[Job], folder: Path, *, cluster: str, workers: int, options: Mapping[str, Any] | None = None
) -> list[Any]:
    """Start `workers` workers on a cluster; each takes runs from `folder`, which all must see, until none is left.

    Args:
        jobs: the runs.
        folder: of their results; its subfolder ``submitit`` has the workers' logs.
        cluster: "slurm", or "local" for processes of this machine.
        workers: how many.
        options: of submitit's executor, such as ``slurm_partition``, ``timeout_min`` or ``gpus_per_node``.

    Returns:
        submitit's jobs.
    """
    try:
        import submitit
    except ImportError:
        raise ImportError("--submit needs submitit, which is not installed: pip install 'vri[slurm]'") from None
    if cluster not in CLUSTERS:
        raise ValueError(f"cluster={cluster!r}: expected one of {', '.join(CLUSTERS)}")
    if workers < 1:
        raise ValueError(f"workers={workers}: expected 1 or more")
    folder.mkdir(parents=True, exist_ok=True)
    executor = submitit.AutoExecutor(folder=folder / "submitit", cluster=cluster)
    try:
        executor.update_parameters(name="vri", **{"timeout_min": 24 * 60, **(options or {})})
    except (NameError, TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"submitit refused an option ({error}); expected such as timeout_min=600") from None
    threads = int((options or {}).get("cpus_per_task", 1))
    with executor.batch():
        handles = [executor.submit(work, list(jobs), folder, None, threads) for _ in range(workers)]
    return handles
