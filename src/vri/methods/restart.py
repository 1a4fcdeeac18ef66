"""For methods whose second phase starts from scratch: keep the initial state and restore it."""

import copy
from typing import Any

from vri.methods.base import Method


def starting_point(method: Method) -> dict[str, Any]:
    """A copy of the model's weights and the optimizer's state; plain containers, to be saved with the method."""
    return copy.deepcopy({"model": method.model.state_dict(), "optimizer": method.optimizer.state_dict()["state"]})


def go_back(method: Method, state: dict[str, Any]) -> None:
    """Return to a starting point; learning rates and other options of the optimizer stay as they are."""
    method.model.load_state_dict(state["model"])
    groups = method.optimizer.state_dict()["param_groups"]
    method.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
