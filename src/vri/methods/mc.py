"""MC: VRI without prior and KL term, the Monte-Carlo variant that its paper compares VRI with."""

from vri.methods.base import Cost, Rates
from vri.methods.options import refused
from vri.methods.vri import VRI


class MC(VRI):
    """VRI with the meta network alone: no prior, no KL term.

    The defaults are VRI's, so there is no other difference.
    """

    name = "mc"
    paper = "Sun et al., Variational Rectification Inference for Learning with Noisy Labels: the MC variant"
    cost = Cost(2.2, 2.0)
    tuned = Rates((0.02, 5e-3), (0.02, 5e-3))
    has_prior = False
    kl_weight = kl_route = refused("there is no KL term")
