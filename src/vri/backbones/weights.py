"""Initial weights from a file on this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

_HOW_TO_GET = (
    "for resnet50 fetch https://download.pytorch.org/models/resnet50-0676ba61.pth (or resnet50-11ad3fa6.pth) where "
    "there is internet, or save timm's there: "
    "torch.save(timm.create_model('resnet50', pretrained=True).state_dict(), 'resnet50.pth')"
)
_SHOWN = 3  # names listed in an error


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Copy the weights in a file into `model`; all its names must be there, in the same shapes.

    Only the last linear layer may have a different number of classes: the model then keeps its own. Nothing is copied
    unless everything fits.

    Args:
        model: where the weights go.
        path: a state dict: ``.safetensors``, or any other name for a file of `torch.save`. It is read as data: code in
            it is refused.
    """
    path = Path(path)
    found = _read(path)
    expected = model.state_dict()
    head = next((name for name, module in reversed(list(model.named_modules())) if isinstance(module, nn.Linear)), None)
    own = {f"{head}.weight", f"{head}.bias"}
    replaced = f"{head}.weight" in found and len(found[f"{head}.weight"]) != len(expected[f"{head}.weight"])
    taken = {name: tensor for name, tensor in found.items() if not (replaced and name in own)}

    # Files older than BatchNorm's counter of batches lack it; it matters only if momentum is None.
    needed = {n for n in expected if not n.endswith("num_batches_tracked") and not (replaced and n in own)}
    problems = []
    if missing := sorted(needed - set(taken)):
        problems.append(f"{len(missing)} of the model's names are not in it ({_some(missing)})")
    if unknown := sorted(set(taken) - set(expected)):
        problems.append(f"{len(unknown)} of its names are not in the model ({_some(unknown)})")
    shapes = [
        f"{n} is {tuple(taken[n].shape)} and not {tuple(expected[n].shape)}"
        for n in expected
        if n in taken and taken[n].shape != expected[n].shape
    ]
    if shapes:
        problems.append(f"{len(shapes)} shapes differ ({_some(shapes)})")
    if problems:
        raise ValueError(
            f"the weights in {path} are not for this model: {'; '.join(problems)}; "
            f"expected the state dict of the same architecture: {_HOW_TO_GET}"
        )
    model.load_state_dict(taken, strict=False)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"no file with weights at {path}; expected a state dict: {_HOW_TO_GET}")
    content: Any
    try:
        if path.suffix == ".safetensors":
            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise many kinds of errors
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
        raise ValueError(
            f"the weights in {path} can't be read ({reason}); "
            f"expected a state dict, whole and without code: {_HOW_TO_GET}"
        ) from error
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        inside = f" of {_some([repr(key) for key in content])}" if isinstance(content, Mapping) else ""
        raise ValueError(
            f"{path} holds a {type(content).__name__}{inside}; expected a state dict, names to tensors: "
            "save model.state_dict() itself"
        )
    return dict(content)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
