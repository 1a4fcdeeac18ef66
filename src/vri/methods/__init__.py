"""The methods, one small file each, behind a plain dict."""

from vri.methods.base import Method
from vri.methods.bootstrapping import Bootstrapping
from vri.methods.co_teaching import CoTeaching
from vri.methods.cross_entropy import CleanOnly, CrossEntropy, FineTuned
from vri.methods.decoupling import Decoupling
from vri.methods.elr import ELR
from vri.methods.gce import GCE
from vri.methods.glc import GLC
from vri.methods.jocor import JoCoR
from vri.methods.l2rw import L2RW
from vri.methods.label_smoothing import LabelSmoothing
from vri.methods.mc import MC
from vri.methods.meta import MetaMethod
from vri.methods.mixup import Mixup
from vri.methods.mlc import MLC
from vri.methods.mslc import MSLC
from vri.methods.mw_net import MWNet
from vri.methods.non_bayesian import NonBayesian
from vri.methods.pmw_net import PMWNet
from vri.methods.sce import SCE
from vri.methods.vri import VRI
from vri.methods.vri_literal import LiteralVRI
from vri.methods.warpi import WarPI

METHODS: dict[str, type[Method]] = {
    "cross-entropy": CrossEntropy,
    "clean-only": CleanOnly,
    "fine-tuned": FineTuned,
    "label-smoothing": LabelSmoothing,
    "mixup": Mixup,
    "gce": GCE,
    "sce": SCE,
    "bootstrapping": Bootstrapping,
    "co-teaching": CoTeaching,
    "decoupling": Decoupling,
    "jocor": JoCoR,
    "elr": ELR,
    "glc": GLC,
    "l2rw": L2RW,
    "mw-net": MWNet,
    "pmw-net": PMWNet,
    "mlc": MLC,
    "mslc": MSLC,
    "warpi": WarPI,
    "mc": MC,
    "non-bayesian": NonBayesian,
    "vri-literal": LiteralVRI,
    "vri": VRI,
}

__all__ = [
    "ELR",
    "GCE",
    "GLC",
    "L2RW",
    "MC",
    "METHODS",
    "MLC",
    "MSLC",
    "SCE",
    "VRI",
    "Bootstrapping",
    "CleanOnly",
    "CoTeaching",
    "CrossEntropy",
    "Decoupling",
    "FineTuned",
    "JoCoR",
    "LabelSmoothing",
    "LiteralVRI",
    "MWNet",
    "MetaMethod",
    "Method",
    "Mixup",
    "NonBayesian",
    "PMWNet",
    "WarPI",
]
