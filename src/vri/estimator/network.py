"""How `VRIClassifier` trains its networks."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vri import backbones
from vri.core.model import call, find_head
from vri.core.randomness import seeded
from vri.data.batches import Transform
from vri.estimator import outputs, samples
from vri.estimator.fitting import Fitted, divide, fit_network
from vri.estimator.inputs import Scaling
from vri.estimator.labels import Indices, Mask
from vri.methods import VRI
from vri.methods.two_networks import networks_of
from vri.training.selection import Selection
from vri.training.state import History

Module = nn.Module | Callable[[int], nn.Module]
_UNEQUAL = 3  # times as many of one label as of another


class NetworkTraining:
    """The part of `VRIClassifier` that knows of networks; its settings and what it has learned are declared there."""

    module: Module | None
    method: str
    method_options: Mapping[str, Any] | None
    hidden: Sequence[int]
    epochs: int | None
    batch_size: int | None
    lr: float | None
    weight_decay: float
    validation_fraction: float
    selection: str
    device: str
    checkpoint_dir: str | Path | None
    verbose: int
    classes_: NDArray[Any]
    remarks_: list[str]
    module_: nn.Module | None
    history_: History
    evidence_: dict[str, NDArray[np.float64]]
    _scaling: Scaling

    def _train(
        self,
        inputs: Any,
        given: Indices,
        mask: Mask | None,
        rows: Indices,
        judged: Indices,
        seed: int,
        name: str,
    ) -> Fitted:
        """Train on some of the samples, to judge others, or the same."""
        known = None if mask is None else mask[rows]
        if known is not None and len(np.unique(given[rows][known])) < len(self.classes_):
            known = None  # a class whose trusted samples are all in the fold that is left out
        part = divide(given[rows], known, self.validation_fraction, len(self.classes_), seed)
        index = torch.from_numpy(rows)
        return fit_network(
            lambda: self._build(inputs, seed),
            samples.part(inputs, index),
            torch.from_numpy(given)[index],
            part,
            samples.part(inputs, torch.from_numpy(judged)),
            num_classes=len(self.classes_),
            method=self.method,
            options=self.method_options or {},
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            weight_decay=self.weight_decay,
            selection=Selection(self._selection(given[rows]), names=self.classes_.tolist()),
            transform=self._transform,
            device=self._device(),
            seed=seed,
            folder=None if self.checkpoint_dir is None else Path(self.checkpoint_dir) / name,
            progress=self.verbose > 0,
            remarks=self.remarks_,
        )

    def _train_on_all(self, inputs: Any, given: Indices, mask: Mask | None, seed: int) -> Fitted:
        everyone = np.arange(len(given))
        fitted = self._train(inputs, given, mask, everyone, everyone, seed, "all")
        self.module_, self.history_ = fitted.method.predictor, fitted.history
        self.evidence_["probability"] = fitted.beliefs.numpy()[everyone, given]
        if isinstance(fitted.method, VRI):
            self.evidence_ |= outputs.rectification(fitted.method, *self._outputs(inputs), torch.from_numpy(given))
        return fitted

    def _selection(self, given: Indices) -> str:
        if self.selection != "auto":
            return self.selection
        counts = np.bincount(given)
        return "proportional" if counts.max() > _UNEQUAL * counts[counts > 0].min() else "balanced"

    def _build(self, inputs: Any, seed: int) -> nn.Module:
        count = len(self.classes_)
        if self.module is None:
            return backbones.mlp(inputs[0].numel(), count, self.hidden, seed=seed)
        with seeded(seed, torch.device("cpu")):
            return copy.deepcopy(self.module) if isinstance(self.module, nn.Module) else self.module(count)

    def _outputs(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Logits and features by the network."""
        assert self.module_ is not None
        options = self.method_options or {}
        first = networks_of(self.module_)[0]
        name, _ = find_head(first, len(self.classes_), options.get("head"), options.get("feature_dim"))
        return outputs.of(self.module_, inputs, name, self._transform)

    @property
    def _transform(self) -> Transform | None:
        return self._scaling.transform if self._scaling.kind == "channels" else None

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def _takes_integers(self, X: Any, seed: int) -> bool:
        """Whether the module takes the integers as they are, as an embedding does; else they must become floats."""
        device = self._device()
        model = self._build(None, seed).to(device).eval()

        def works(inputs: Tensor) -> bool:
            try:
                with torch.no_grad(), seeded(seed, device):
                    call(model, inputs.to(device))
            except (RuntimeError, TypeError, ValueError, IndexError):
                return False
            return True

        few = torch.from_numpy(np.array(X[:2], np.int64))
        return works(few) or not works(few.float())
