"""`VRIClassifier`: the whole of vri behind scikit-learn's interface."""

import copy
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import StratifiedKFold
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from vri import backbones, quality
from vri.core.model import call, find_head
from vri.core.objective import gaussian_kl
from vri.core.randomness import derive_seed, seeded
from vri.data.batches import Transform
from vri.estimator import storage
from vri.estimator.fitting import Fitted, divide, fit_network
from vri.estimator.inputs import Scaling
from vri.estimator.labels import Indices, Mask, as_mask, encode
from vri.methods import METHODS, VRI
from vri.methods.options import must_be, one_of
from vri.training.selection import KINDS, Selection

Module = nn.Module | Callable[[int], nn.Module]
Floats = NDArray[np.float64]

_CHUNK = 1000  # samples a forward pass outside training


class VRIClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns from wrongly labelled data and tells which labels are wrong.

    Args:
        module: None for a small fully connected network with the scaling of the inputs inside; or any `nn.Module`
            that returns logits (it is copied), or a function from the number of classes to one. A module of yours
            gets the inputs as they are, but for uint8 images, which are standardised.
        method: how to train, a name of `vri.METHODS`: "cross-entropy" is plain training.
        method_options: further options of the method.
        hidden: widths of the layers of the small network.
        epochs: passes through the data; found from its size by default.
        batch_size: likewise.
        lr: learning rate at the beginning; it falls to 0 along a cosine. By default 0.02, and 0.1 for a module with
            batch normalisation; one with pretrained weights wants less.
        weight_decay: of SGD.
        validation_fraction: share of the samples, or of the trusted ones if there are enough, that is held out to tell
            the best epoch, and on which training is stopped early; 0 holds out none. Small data is not held out.
        selection: without trusted samples, how samples are chosen to stand in for them: "balanced", "smallest" or
            "mixture".
        cross_fit: k, to score every label by a network that was not trained on it: k further networks, each
            trained without a k-th of the samples. None scores by the one network.
        precision: aimed at by `find_label_issues`: about this share of the labels it names is wrong.
        device: "auto" (CUDA where there is one), or a name of torch.
        random_state: an int for the same result every time.
        checkpoint_dir: folder in which training is saved; the same call goes on there after a crash or Ctrl-C.
        verbose: 1 shows progress with the time left.

    Attributes:
        classes_: the labels in order.
        module_: the trained network.
        label_quality_: (n,) probability that the label of a training sample is right.
        transition_matrix_: (c, c) how labels got confused: P(given label j | true class i).
        noise_rate_: estimated share of wrong labels among those that are not trusted.
        noise_rate_interval_: low and high end of it.
        threshold_: labels of a quality below it are named as issues.
        outlier_score_: (n,) from 0 to 1; above 0.5 a sample looks like no class, or like many.
        evidence_: what VRI knows about each label, (n,) each: `probability` of it, on average over the later epochs,
            `trust` that the posterior of the rectifying vector has in it, and `disagreement`, which is
            KL(q(v | x, y) ‖ p(v | x)).
        fold_, out_of_sample_proba_: with `cross_fit`, which fold a sample was in, and its probabilities (n, c).
        history_: rows of numbers, one an epoch.
        remarks_: what was odd, such as a class of which no sample could be chosen.
    """

    def __init__(
        self,
        module: Module | None = None,
        *,
        method: str = "vri",
        method_options: Mapping[str, Any] | None = None,
        hidden: Sequence[int] = (256, 256),
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        weight_decay: float = 5e-3,
        validation_fraction: float = 0.1,
        selection: str = "balanced",
        cross_fit: int | None = None,
        precision: float = 0.8,
        device: str = "auto",
        random_state: Any = None,
        checkpoint_dir: str | Path | None = None,
        verbose: int = 0,
    ) -> None:
        self.module = module
        self.method = method
        self.method_options = method_options
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.selection = selection
        self.cross_fit = cross_fit
        self.precision = precision
        self.device = device
        self.random_state = random_state
        self.checkpoint_dir = checkpoint_dir
        self.verbose = verbose

    def fit(self, X: Any, y: Any, trusted: Any = None) -> Self:
        """Learn from samples whose labels may be wrong.

        Args:
            X: (n, d) array, frame of numbers or sparse matrix; with `module`, arrays of any shape (n, …).
            y: (n,) labels: numbers, strings or anything hashable.
            trusted: (n,) mask of the labels known to be right; without it, samples are chosen to stand in for them.
        """
        self._check_settings()
        X = self._check_inputs(X, y, fitting=True)
        self.classes_, given = encode(y)
        if len(given) != X.shape[0]:
            raise ValueError(f"X has {X.shape[0]} samples and y {len(given)} labels; expected as many")
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class, {self.classes_.tolist()[0]!r}: expected at least 2 classes to tell apart"
            )
        mask = self._usable(as_mask(trusted, len(given)), given)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.remarks_: list[str] = []
        self._scaling = Scaling.learn(X, self.module is not None, seed)
        inputs = self._scaling.apply(X)

        everyone = np.arange(len(given))
        fitted = self._train(inputs, given, mask, everyone, everyone, seed, "all")
        self.module_, self.history_ = fitted.method.model, fitted.history
        probabilities, labels = fitted.beliefs, torch.from_numpy(given)
        self.evidence_ = {"probability": probabilities.gather(1, labels[:, None]).squeeze(1).numpy()}
        if isinstance(fitted.method, VRI):
            self.evidence_ |= _rectification(fitted.method, self._outputs(inputs, self.module_)[1], labels)
        if self.cross_fit is not None:
            probabilities = self._cross_fit(inputs, given, mask, seed)
        self._judge(probabilities, labels, mask)
        self._given = given
        return self

    def predict_proba(self, X: Any) -> Floats:
        """(n, c) probability of each class, in the order of `classes_`."""
        check_is_fitted(self)
        inputs = self._scaling.apply(self._check_inputs(X, None, fitting=False))
        found: Floats = self._outputs(inputs, self.module_)[0].softmax(1).numpy()
        return found

    def predict(self, X: Any) -> NDArray[Any]:
        """(n,) most probable class."""
        check_is_fitted(self)
        chosen: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(1)]
        return chosen

    def find_label_issues(self) -> pd.DataFrame:
        """What became of the label of every training sample, in their order, with cleanlab's names.

        `label_quality` is the probability that the label is right. `predicted_label` is what it should be if it is
        wrong, `predicted_probability` how sure that is. Trusted labels are never issues.
        """
        check_is_fitted(self)
        return pd.DataFrame(
            {
                "given_label": self.classes_[self._given],
                "predicted_label": self.classes_[self._suggested],
                "label_quality": self.label_quality_,
                "is_label_issue": self._issues,
                "predicted_probability": self._confidence,
                "outlier_score": self.outlier_score_,
            }
        )

    def save(self, path: str | Path) -> None:
        """Write network, scaling and classes to one .safetensors file; it holds no code."""
        check_is_fitted(self)
        storage.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, module: Module | None = None) -> Self:
        """A classifier that predicts, from `save`; a network of your own must be given again as `module`."""
        found: Self = storage.load(cls, Path(path), module)
        return found

    def _train(
        self,
        inputs: Tensor,
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
            inputs[index],
            torch.from_numpy(given)[index],
            part,
            inputs[torch.from_numpy(judged)],
            num_classes=len(self.classes_),
            method=self.method,
            options=self.method_options or {},
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            weight_decay=self.weight_decay,
            selection=Selection(self.selection),
            transform=self._transform,
            device=self._device(),
            seed=seed,
            folder=None if self.checkpoint_dir is None else Path(self.checkpoint_dir) / name,
            progress=self.verbose > 0,
            remarks=self.remarks_,
        )

    def _cross_fit(self, inputs: Tensor, given: Indices, mask: Mask | None, seed: int) -> Tensor:
        """Probabilities of each sample by a network trained without it."""
        folds = self._folds(given, seed)
        self.fold_ = np.zeros(len(given), np.int64)
        found = torch.zeros(len(given), len(self.classes_), dtype=torch.float64)
        for number, (rows, held) in enumerate(folds):
            if self.verbose:
                print(f"fold {number + 1} of {len(folds)}", file=sys.stderr)
            self.fold_[held] = number
            own_seed = derive_seed(seed, number) % 2**31
            fitted = self._train(inputs, given, mask, rows, held, own_seed, f"fold-{number}")
            found[torch.from_numpy(held)] = fitted.beliefs
        self.out_of_sample_proba_ = found.numpy()
        return found

    def _folds(self, given: Indices, seed: int) -> list[tuple[Indices, Indices]]:
        k = self.cross_fit or 2
        smallest = int(np.bincount(given).min())
        if smallest < 2:
            rare = self.classes_.tolist()[int(np.bincount(given).argmin())]
            raise ValueError(
                f"cross_fit={k}: class {rare!r} has one sample, so a fold would have none to learn it from; "
                "remove the class, or set cross_fit=None"
            )
        splitter = StratifiedKFold(min(k, len(given)), shuffle=True, random_state=seed % 2**32)
        with warnings.catch_warnings():  # that a class has fewer samples than folds does no harm here
            warnings.simplefilter("ignore", UserWarning)
            return list(splitter.split(np.zeros(len(given)), given))

    def _judge(self, probabilities: Tensor, given: Tensor, mask: Mask | None) -> None:
        """All that is said about the labels; trusted ones are right."""
        free = torch.ones(len(given), dtype=torch.bool) if mask is None else ~torch.from_numpy(mask)
        judged = free if free.any() else ~free  # where all are trusted, there is still a matrix to estimate
        verdict = quality.judge(probabilities[judged], given[judged])
        right = torch.ones(len(given), dtype=torch.float64)
        right[judged] = verdict.label_quality
        right[~free] = 1.0
        beliefs = torch.nn.functional.one_hot(given, len(self.classes_)).double()
        beliefs[free] = verdict.beliefs[free[judged]]
        self.transition_matrix_ = verdict.transitions.numpy()
        self.noise_rate_, self.noise_rate_interval_ = verdict.noise_rate, verdict.noise_interval
        self.threshold_ = quality.threshold(verdict.label_quality, self.precision)
        self.label_quality_ = right.numpy()
        self.outlier_score_ = quality.outlier_score(probabilities).numpy()
        issues = right < self.threshold_
        # for an issue, the best class but the given one, which may still be ahead of each of the others
        suggested = torch.where(issues, beliefs.scatter(1, given[:, None], -1.0).argmax(1), beliefs.argmax(1))
        self._issues, self._suggested = issues.numpy(), suggested.numpy()
        self._confidence = beliefs.gather(1, suggested[:, None]).squeeze(1).numpy()

    def _build(self, inputs: Tensor, seed: int) -> nn.Module:
        count = len(self.classes_)
        if self.module is None:
            return backbones.mlp(inputs[0].numel(), count, self.hidden, seed=seed)
        with seeded(seed, torch.device("cpu")):
            return copy.deepcopy(self.module) if isinstance(self.module, nn.Module) else self.module(count)

    def _outputs(self, inputs: Tensor, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Logits and features of all samples, on the CPU; the logits in double precision."""
        options = self.method_options or {}
        name, _ = find_head(model, len(self.classes_), options.get("head"), options.get("feature_dim"))
        seen: list[Tensor] = []
        hook = None
        if name is not None:
            hook = model.get_submodule(name).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        logits, features = [], []
        device = next(model.parameters()).device
        try:
            with torch.no_grad():
                for part in inputs.split(_CHUNK):
                    on_device = part.to(device)
                    out = call(model, on_device if self._transform is None else self._transform(on_device, 0))
                    plain = out[0] if isinstance(out, (tuple, list)) else getattr(out, "logits", out)
                    logits.append(plain.double().cpu())
                    features.append((seen.pop() if seen else out[1]).float().cpu())
        finally:
            if hook is not None:
                hook.remove()
        return torch.cat(logits), torch.cat(features)

    @property
    def _transform(self) -> Transform | None:
        return self._scaling.transform if self._scaling.kind == "channels" else None

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def _check_settings(self) -> None:
        mistakes = [
            *one_of("method", self.method, METHODS),
            *one_of("selection", self.selection, KINDS),
            *must_be("lr", self.lr, self.lr is None or self.lr > 0, "None, or more than 0"),
            *must_be("weight_decay", self.weight_decay, self.weight_decay >= 0, "0 or more"),
            *must_be(
                "validation_fraction", self.validation_fraction, 0 <= self.validation_fraction < 1, "0 to below 1"
            ),
            *must_be("precision", self.precision, 0 < self.precision < 1, "between 0 and 1"),
        ]
        for name, least in (("epochs", 1), ("batch_size", 1), ("cross_fit", 2)):
            value = getattr(self, name)
            mistakes += must_be(name, value, value is None or value >= least, f"None, or at least {least}")
        if mistakes:
            raise ValueError("VRIClassifier got settings it can't use: " + "; ".join(mistakes))

    def _check_inputs(self, X: Any, y: Any, *, fitting: bool) -> Any:
        """X as an array or a CSR matrix; scikit-learn's own checks and messages."""
        if isinstance(X, Tensor):
            X = X.detach().cpu().numpy()
        images = self.module is not None
        keep = images and getattr(X, "dtype", None) == np.uint8
        checked = validate_data(
            self,
            X,
            reset=fitting,
            accept_sparse="csr" if not images else False,
            dtype=None if keep else np.float32,
            allow_nd=images,
            ensure_min_samples=2 if fitting else 1,
        )
        return checked

    def _usable(self, mask: Mask | None, given: Indices) -> Mask | None:
        """The trusted samples, if they have every class; else none, with a warning."""
        if mask is None:
            return None
        missing = np.setdiff1d(np.arange(len(self.classes_)), given[mask])
        if not len(missing):
            return mask
        names = ", ".join(repr(name) for name in self.classes_[missing[:5]].tolist())
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        warnings.warn(
            f"no trusted sample has the label {names}{more}: expected at least one of each class, so the classifier "
            "learns as if nothing was trusted; trust some samples of every class",
            stacklevel=3,
        )
        return None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.module is None
        tags.input_tags.three_d_array = self.module is not None
        return tags


@torch.no_grad()
def _rectification(method: VRI, features: Tensor, labels: Tensor) -> dict[str, Floats]:
    """What the meta networks make of the labels."""
    trust, disagreement = [], []
    device = method.classifier.device
    for f, y in zip(features.split(_CHUNK), labels.split(_CHUNK), strict=True):
        posterior, prior = method.posterior(f.to(device), y.to(device)), method.prior(f.to(device))
        weights = method.squash(posterior.mean)
        trust.append(weights.gather(1, y.to(device)[:, None]).squeeze(1).double().cpu())
        disagreement.append(gaussian_kl(posterior, prior).double().cpu())
    return {"trust": torch.cat(trust).numpy(), "disagreement": torch.cat(disagreement).numpy()}
