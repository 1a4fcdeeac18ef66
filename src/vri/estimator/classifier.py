"""`VRIClassifier`: the whole of vri behind scikit-learn's interface."""

import copy
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from vri import backbones, quality
from vri.core.model import find_head
from vri.core.randomness import derive_seed, seeded
from vri.data.batches import Transform
from vri.estimator import checks, ensemble, outputs, storage
from vri.estimator.ensemble import Ensemble, Views
from vri.estimator.evidence import folds_of
from vri.estimator.fitting import Fitted, divide, fit_network
from vri.estimator.inputs import Scaling
from vri.estimator.labels import Indices, Mask, as_mask, encode
from vri.methods import VRI
from vri.methods.two_networks import networks_of
from vri.training.selection import Selection
from vri.training.state import History

Module = nn.Module | Callable[[int], nn.Module]
Floats = NDArray[np.float64]

_OF_THE_NETWORK = ("method", "method_options", "epochs", "batch_size", "lr")  # who sets these wants the network
_UNEQUAL = 3  # times as many of one label as of another
_FOLDS, _FEW_FOLDS = 5, 3  # of several classifiers; of networks alone
_SMALL = 1000  # samples up to which a network alone is cross-fitted without being asked


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
        selection: without trusted samples, how the network chooses samples to stand in for them: "balanced",
            "proportional", "smallest" or "mixture"; "auto" is balanced, and proportional where one label is more than
            three times as frequent as another.
        evidence: who judges the labels and predicts. "auto" is the network alone for large data, with `module`, or
            where you set `method`, `method_options`, `epochs`, `batch_size` or `lr`; else classifiers that suit the
            kind of the data. "network" is the network alone. Or a list of names: "network", "linear" (logistic
            regression), "bayes" (naive Bayes, for texts), "neighbours", "forest", "boosting". These are pooled by how
            well they predict labels that they have not seen. A module of yours is always alone.
        cross_fit: k, to judge every label by classifiers that were not trained on it, each trained without a k-th of
            the samples. 0 judges by the one network, which has seen the labels. None is 5 where there are several
            classifiers; for the network alone 3 up to 1,000 samples and 0 above, or 0 with evidence="network".
        precision: aimed at by `find_label_issues`: about this share of the labels it names is wrong.
        device: "auto" (CUDA where there is one), or a name of torch.
        random_state: an int for the same result every time.
        checkpoint_dir: folder in which training is saved; the same call goes on there after a crash or Ctrl-C.
        verbose: 1 shows progress with the time left.

    Attributes:
        classes_: the labels in order.
        module_: the trained network; None where it had nothing to add to the evidence.
        label_quality_: (n,) probability that the label of a training sample is right.
        transition_matrix_: (c, c) how labels got confused: P(given label j | true class i).
        noise_rate_: estimated share of wrong labels among those that are not trusted.
        noise_rate_interval_: low and high end of it.
        threshold_: labels of a quality below it are named as issues.
        outlier_score_: (n,) from 0 to 1; above 0.5 a sample looks like no class, or like many.
        evidence_: what each one says about each label, (n,) each: `probability` of it; by each classifier's name, its
            own probability for it; and where VRI was trained on all samples `trust`, what the posterior of the
            rectifying vector has in it, and `disagreement`, which is KL(q(v | x, y) ‖ p(v | x)).
        evidence_weights_: share of each classifier in the evidence, by its name.
        fold_, out_of_sample_proba_: where labels are judged out of sample, which fold a sample was in, and its
            probabilities (n, c).
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
        selection: str = "auto",
        evidence: str | Sequence[str] = "auto",
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
        self.evidence = evidence
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
        checks.settings(self)
        X = self._check_inputs(X, y, fitting=True)
        self.classes_, given = encode(y)
        if len(given) != X.shape[0]:
            raise ValueError(f"X has {X.shape[0]} samples and y {len(given)} labels; expected as many")
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class, {self.classes_.tolist()[0]!r}: expected at least 2 classes to tell apart"
            )
        mask = checks.usable(as_mask(trusted, len(given)), given, self.classes_)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.remarks_: list[str] = []
        for rare in self.classes_[np.bincount(given) == 1].tolist():
            self.remarks_.append(f"class {rare!r} has one sample, so there is nothing to compare its label with")
        self._scaling = Scaling.learn(X, self.module is not None, seed)
        inputs = self._scaling.apply(X)
        names = self._names(X)
        folds = self._fold_count(len(given), names)
        self.module_: nn.Module | None = None
        self.history_: History = []
        self._ensemble: Ensemble | None = None
        self.evidence_: dict[str, Floats] = {}
        self.evidence_weights_: dict[str, float] = {}
        if folds:
            self._judge_unseen(X, inputs, given, mask, names, folds, seed)
        else:
            self._judge_seen(inputs, given, mask, seed)
        self._given = given
        return self

    def predict_proba(self, X: Any) -> Floats:
        """(n, c) probability of each class, in the order of `classes_`."""
        check_is_fitted(self)
        X = self._check_inputs(X, None, fitting=False)
        inputs = self._scaling.apply(X)
        network: Floats | None = None
        if self.module_ is not None:
            network = self._outputs(inputs)[0].softmax(1).numpy()
        if self._ensemble is not None:
            return self._ensemble.predict(self._views(X, inputs), network)
        assert network is not None
        return network

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
            selection=Selection(self._selection(given[rows])),
            transform=self._transform,
            device=self._device(),
            seed=seed,
            folder=None if self.checkpoint_dir is None else Path(self.checkpoint_dir) / name,
            progress=self.verbose > 0,
            remarks=self.remarks_,
        )

    def _names(self, X: Any) -> tuple[str, ...]:
        """Who gives evidence."""
        if self.module is not None or self.evidence == ensemble.NETWORK:
            return (ensemble.NETWORK,)
        if isinstance(self.evidence, str) and self.evidence != "auto":
            return (self.evidence,)
        if self.evidence == "auto":
            defaults = inspect.signature(type(self)).parameters
            if any(getattr(self, name) != defaults[name].default for name in _OF_THE_NETWORK):
                return (ensemble.NETWORK,)
            return ensemble.choose(X.shape[0], X.shape[1], len(self.classes_), X)
        return tuple(dict.fromkeys(self.evidence))

    def _fold_count(self, samples: int, names: tuple[str, ...]) -> int:
        """How many folds; 0 to judge labels by the one network that has seen them."""
        if self.cross_fit is not None:
            return self.cross_fit
        if names != (ensemble.NETWORK,):
            return _FOLDS
        return _FEW_FOLDS if self.evidence == "auto" and samples <= _SMALL else 0

    def _judge_seen(self, inputs: Tensor, given: Indices, mask: Mask | None, seed: int) -> None:
        """By the network that has learned from the labels, and what it believed on the way."""
        fitted = self._train_on_all(inputs, given, mask, seed)
        labels = torch.from_numpy(given)
        free = torch.ones(len(given), dtype=torch.bool) if mask is None else ~torch.from_numpy(mask)
        judged = free if free.any() else ~free  # where all are trusted, there is still a matrix to estimate
        verdict = quality.judge(fitted.beliefs[judged], labels[judged])
        right = torch.ones(len(given), dtype=torch.float64)
        right[judged] = verdict.label_quality
        right[~free] = 1.0
        beliefs = torch.nn.functional.one_hot(labels, len(self.classes_)).double()
        beliefs[free] = verdict.beliefs[free[judged]]
        self.transition_matrix_ = verdict.transitions.numpy()
        self.noise_rate_, self.noise_rate_interval_ = verdict.noise_rate, verdict.noise_interval
        self.outlier_score_ = quality.outlier_score(fitted.beliefs).numpy()
        self._conclude(right.numpy(), beliefs.numpy(), given, judged.numpy())

    def _judge_unseen(
        self,
        X: Any,
        inputs: Tensor,
        given: Indices,
        mask: Mask | None,
        names: tuple[str, ...],
        count: int,
        seed: int,
    ) -> None:
        """By classifiers that have not learned from the labels they judge."""
        folds = self._folds(given, count, seed)
        self.fold_ = np.zeros(len(given), np.int64)
        for number, (_, held) in enumerate(folds):
            self.fold_[held] = number

        def network(rows: Indices, held: Indices, targets: Floats, number: int) -> Floats:
            if self.verbose:
                print(f"fold {number + 1} of {len(folds)}", file=sys.stderr)
            own_seed = derive_seed(seed, number) % 2**31
            found: Floats = self._train(inputs, given, mask, rows, held, own_seed, f"fold-{number}").beliefs.numpy()
            return found

        views = self._views(X, inputs)
        evidence = ensemble.gather(names, views, given, mask, folds, len(self.classes_), seed, network)
        rows = np.arange(len(given))
        self.evidence_weights_ = evidence.weights
        if evidence.weights.get(ensemble.NETWORK, 0.0) > 0:
            self._train_on_all(inputs, given, mask, seed)
        if names == (ensemble.NETWORK,):
            self.out_of_sample_proba_ = evidence.said[ensemble.NETWORK]
        else:
            self.out_of_sample_proba_ = evidence.pooled
            self._ensemble = ensemble.refit(evidence, views, seed)
        self.evidence_ |= {name: said[rows, given] for name, said in evidence.said.items()}
        self.evidence_["probability"] = self.out_of_sample_proba_[rows, given]
        judgement = evidence.judgement
        free = np.ones(len(given), bool) if mask is None else ~mask
        self.transition_matrix_ = judgement.transitions
        self.noise_rate_, self.noise_rate_interval_ = judgement.noise_rate, judgement.noise_interval
        self.outlier_score_ = quality.outlier_score(torch.from_numpy(evidence.pooled)).numpy()
        self._conclude(np.where(free, judgement.quality, 1.0), judgement.beliefs, given, free if free.any() else ~free)

    def _conclude(self, right: Floats, beliefs: Floats, given: Indices, judged: Mask) -> None:
        """Which labels are named, and what they should be."""
        self.label_quality_ = right
        self.threshold_ = quality.threshold(torch.from_numpy(right[judged]), self.precision)
        self._issues = right < self.threshold_
        # for an issue, the best class but the given one, which may still be ahead of each of the others
        rows = np.arange(len(given))
        others = beliefs.copy()
        others[rows, given] = -1.0
        self._suggested = np.where(self._issues, others.argmax(1), beliefs.argmax(1))
        self._confidence = beliefs[rows, self._suggested]

    def _train_on_all(self, inputs: Tensor, given: Indices, mask: Mask | None, seed: int) -> Fitted:
        everyone = np.arange(len(given))
        fitted = self._train(inputs, given, mask, everyone, everyone, seed, "all")
        self.module_, self.history_ = fitted.method.predictor, fitted.history
        self.evidence_["probability"] = fitted.beliefs.numpy()[everyone, given]
        if isinstance(fitted.method, VRI):
            self.evidence_ |= outputs.rectification(fitted.method, *self._outputs(inputs), torch.from_numpy(given))
        return fitted

    def _folds(self, given: Indices, count: int, seed: int) -> list[tuple[Indices, Indices]]:
        return folds_of(given, count, seed)

    def _views(self, X: Any, inputs: Tensor) -> Views:
        """Inputs as the members want them."""
        if self._scaling.kind != "columns":
            return Views(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32), None)
        scaled = inputs.numpy()
        wide = self._scaling.projection is not None
        gaps = not sparse.issparse(X) and bool(np.isnan(X).any())
        with_gaps = self._scaling.apply(X, keep_gaps=True).numpy() if gaps else scaled
        return Views(scaled, with_gaps, X if wide else None)

    def _selection(self, given: Indices) -> str:
        if self.selection != "auto":
            return self.selection
        counts = np.bincount(given)
        return "proportional" if counts.max() > _UNEQUAL * counts[counts > 0].min() else "balanced"

    def _build(self, inputs: Tensor, seed: int) -> nn.Module:
        count = len(self.classes_)
        if self.module is None:
            return backbones.mlp(inputs[0].numel(), count, self.hidden, seed=seed)
        with seeded(seed, torch.device("cpu")):
            return copy.deepcopy(self.module) if isinstance(self.module, nn.Module) else self.module(count)

    def _outputs(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
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
            ensure_all_finite=True if images or sparse.issparse(X) else "allow-nan",
            ensure_min_samples=2 if fitting else 1,
        )
        return checked

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.module is None
        tags.input_tags.allow_nan = self.module is None
        tags.input_tags.three_d_array = self.module is not None
        return tags
