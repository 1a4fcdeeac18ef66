"""A fitted classifier as one .safetensors file: arrays and JSON, no code."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from sklearn.utils.validation import check_is_fitted
from torch import nn

from vri import backbones
from vri.estimator.ensemble import NETWORK, Ensemble
from vri.estimator.evidence import Pool
from vri.estimator.inputs import Scaling
from vri.estimator.members import MEMBERS
from vri.estimator.own_estimator import OwnEstimator
from vri.files import atomic_write
from vri.methods.two_networks import JointNetwork

_NO_SCALING = Scaling("none", np.zeros(0, np.float32), np.zeros(0, np.float32))
_FORMAT = "vri classifier 2"  # the number is raised whenever the meaning of a file's content changes
_PLAIN = (str, bool, int, float, type(None))


def save(classifier: Any, path: Path) -> None:
    """Write network, scaling and classes."""
    classes = classifier.classes_.tolist()
    odd = next((label for label in classes if not isinstance(label, _PLAIN)), None)
    if odd is not None:
        raise TypeError(
            f"the label {odd!r} is a {type(odd).__name__}; expected strings, numbers, booleans or None, which a file "
            "without code can hold: fit with such labels, or pickle the classifier"
        )
    network = classifier.module_
    scaling = getattr(classifier, "_scaling", _NO_SCALING)  # an estimator of the user's has none
    tensors = {} if network is None else {f"module.{name}": value for name, value in network.state_dict().items()}
    for name in ("mean", "scale", "projection"):
        value = getattr(scaling, name)
        if value is not None:
            tensors[f"scaling.{name}"] = torch.from_numpy(value)
    if classifier.estimator is not None:
        tensors |= {f"pool.{name}": torch.from_numpy(np.atleast_1d(v)) for name, v in vars(classifier._pool).items()}
    others = classifier._ensemble
    if others is not None:
        for name, value in _ensemble_arrays(others).items():
            tensors[name] = torch.from_numpy(np.atleast_1d(value))
    about = {
        "format": _FORMAT,
        "classes": json.dumps(classes),
        "classes_dtype": "object" if classifier.classes_.dtype == object else classifier.classes_.dtype.str,
        "scaling": scaling.kind,
        "features": str(getattr(classifier, "n_features_in_", None)),
        "own_estimator": str(classifier.estimator is not None),
        "own_module": str(classifier.module is not None),
        "inputs": str(_input_width(classifier)),
        "hidden": json.dumps(list(classifier.hidden)),
        "network": str(network is not None),
        "ensemble": json.dumps(None if others is None else list(others.names)),
    }
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with atomic_write(path) as file:
        file.write(to_bytes(whole, metadata=about))


def load(kind: type[Any], path: Path, module: Any, estimator: Any) -> Any:
    """A classifier that predicts as the saved one did."""
    about, tensors = _read(path)
    # files of versions that had only a network
    about = {"network": "True", "ensemble": "null", "own_estimator": "False", **about}
    try:
        found, network = _described(kind, module, about, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError, MemoryError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {reason}); expected a file as VRIClassifier.save wrote it"
        ) from None
    found.module_ = None
    if about["own_estimator"] == "True":
        return _with_estimator(found, path, estimator, tensors)
    if about["network"] != "True":
        return found
    if network is None:
        if module is None:
            raise ValueError(
                f"{path} holds the weights of a network of your own, which is not in the file; pass it as module="
            )
        network = module if isinstance(module, nn.Module) else module(len(found.classes_))
    weights = {name.removeprefix("module."): t for name, t in tensors.items() if name.startswith("module.")}
    count = len({name.split(".")[1] for name in weights if name.startswith("networks.")})
    if count > 1 and not any(name.startswith("networks.") for name in network.state_dict()):
        network = JointNetwork(*(copy.deepcopy(network) for _ in range(count)))
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit the module: {error}; pass the module it was trained with") from None
    found.module_ = network.eval()
    return found


def _with_estimator(found: Any, path: Path, estimator: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if estimator is None:
        raise ValueError(
            f"{path} belongs to a scikit-learn estimator of your own, which is not in the file; pass the fitted one "
            "(`estimator_`, which joblib or pickle can keep) as estimator="
        )
    check_is_fitted(estimator)
    found.estimator = found.estimator_ = estimator
    found._own = OwnEstimator(estimator, found.classes_)
    found._pool = Pool(
        **{name.removeprefix("pool."): t.numpy() for name, t in tensors.items() if name.startswith("pool.")}
    )
    return found


def _described(
    kind: type[Any], module: Any, about: dict[str, str], tensors: dict[str, torch.Tensor]
) -> tuple[Any, nn.Module | None]:
    """The classifier without its weights; and its network, unless that is the user's own."""
    classes_list, hidden = json.loads(about["classes"]), tuple(json.loads(about["hidden"]))
    classes = np.empty(len(classes_list), dtype=object)
    classes[:] = classes_list
    if about["classes_dtype"] != "object":
        classes = classes.astype(about["classes_dtype"])
    found = kind(module=module, hidden=hidden)
    found.classes_ = classes
    if about["features"] != "None":
        found.n_features_in_ = int(about["features"])
    arrays = {name.removeprefix("scaling."): t.numpy() for name, t in tensors.items() if name.startswith("scaling.")}
    found._scaling = Scaling(about["scaling"], **arrays)
    found._ensemble = _ensemble(json.loads(about["ensemble"]), tensors)
    if about["own_module"] == "True" or about["network"] != "True":
        return found, None
    return found, backbones.mlp(int(about["inputs"]), len(classes), hidden, seed=0)


def _ensemble_arrays(others: Ensemble) -> dict[str, Any]:
    pool = {f"pool.{name}": value for name, value in vars(others.pool).items()}
    said = {
        f"member.{name}.{part}": value
        for name, member in others.members.items()
        for part, value in member.arrays().items()
    }
    return pool | said


def _ensemble(names: list[str] | None, tensors: dict[str, torch.Tensor]) -> Ensemble | None:
    if names is None:
        return None
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}

    def under(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}

    members = {name: MEMBERS[name].from_arrays(under(f"member.{name}.")) for name in names if name != NETWORK}
    return Ensemble(members, Pool(**under("pool.")), names)


def _read(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; expected one written by VRIClassifier.save")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise ValueError(f"{path} can't be read ({error}); expected a file written by VRIClassifier.save") from None
    found = about.get("format", "")
    if found.rpartition(" ")[0] == _FORMAT.rpartition(" ")[0] and found != _FORMAT:
        raise ValueError(f"{path} was written by another version of vri ({found!r}; expected {_FORMAT!r}): fit again")
    if found != _FORMAT:
        raise ValueError(f"{path} holds something else; expected a file written by VRIClassifier.save")
    return about, tensors


def _input_width(classifier: Any) -> int:
    projection = getattr(classifier, "_scaling", _NO_SCALING).projection
    return int(getattr(classifier, "n_features_in_", 0) if projection is None else projection.shape[1])
