"""What a training step of each method costs against plain cross-entropy, as `vri bench --methods` measured it."""

from typing import NamedTuple


class Cost(NamedTuple):
    """Of one step, cross-entropy = 1: ResNet-32, batches of 100, two CPU cores, each method with its defaults."""

    time: float
    memory: float  # at its peak


COSTS: dict[str, Cost] = {
    "cross-entropy": Cost(1.0, 1.0),
    "clean-only": Cost(1.0, 1.0),
    "fine-tuned": Cost(1.0, 1.0),
    "label-smoothing": Cost(1.0, 1.0),
    "mixup": Cost(1.0, 1.0),
    "gce": Cost(1.0, 1.0),
    "sce": Cost(1.0, 1.0),
    "bootstrapping": Cost(1.1, 1.0),
    "co-teaching": Cost(2.2, 2.0),
    "decoupling": Cost(2.1, 2.0),
    "jocor": Cost(2.1, 2.0),
    "elr": Cost(1.0, 1.0),
    "glc": Cost(2.1, 2.0),
    "l2rw": Cost(3.7, 2.2),
    "mw-net": Cost(3.5, 2.2),
    "pmw-net": Cost(3.4, 2.2),
    "mlc": Cost(2.9, 2.2),
    "mslc": Cost(3.7, 2.2),
    "warpi": Cost(3.6, 2.2),
    "mc": Cost(2.3, 2.3),
    "non-bayesian": Cost(2.3, 2.3),
    "vri-literal": Cost(3.4, 2.3),
    "vri": Cost(2.4, 2.3),
}
