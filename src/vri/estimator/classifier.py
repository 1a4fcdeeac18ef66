"""`VRIClassifier`: the whole of vri behind scikit-learn's interface."""

import inspect
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import _safe_indexing, check_random_state, get_tags, indexable
from sklearn.utils.validation import _num_samples, check_is_fitted, validate_data
from torch import Tensor

from vri import quality
from vri.core.randomness import derive_seed
from vri.estimator import checks, ensemble, own_estimator, samples, storage
from vri.estimator.ensemble import Ensemble, Evidence, Views
from vri.estimator.evidence import folds_of
from vri.estimator.inputs import Scaling
from vri.estimator.issues import LabelIssues, checked_threshold, likely_classes
from vri.estimator.labels import MISSING, Indices, Mask, as_mask, encode
from vri.estimator.network import Module, NetworkTraining
from vri.estimator.odd_labels import copies_of_label, odd_classes
from vri.estimator.own_estimator import OwnEstimator
from vri.estimator.remarks import contradictions
from vri.training.progress import is_watched, portion, report

Floats = NDArray[np.float64]

_OF_THE_NETWORK = ("method", "method_options", "epochs", "batch_size", "lr")  # who sets these wants the network
_FOLDS, _FEW_FOLDS = 5, 3  # of several classifiers; of networks alone
_SMALL = 1000  # samples up to which a network alone is cross-fitted without being asked


class VRIClassifier(ClassifierMixin, BaseEstimator, NetworkTraining):  # type: ignore[misc]
    """A classifier that learns from wrongly labelled data and tells which labels are wrong.

    Args:
        module: None for a small fully connected network with the scaling of the inputs inside; or any `nn.Module`
            that returns logits (it is copied), or a function from the number of classes to one. A module of yours
            gets the inputs as they are, but for uint8 images, which are standardised.
        estimator: a classifier of scikit-learn to judge and predict with instead: it is cross-fitted, and learns once
            more from what was found out about the labels, by `sample_weight` where it takes that. It gets X as it is,
            texts for example if it is a pipeline for texts.
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
            regression), "gaussian" (linear discriminant analysis, for embeddings), "kernel" (regression on Gaussian
            functions), "bayes" (naive Bayes, for texts), "neighbours", "forest", "boosting". These are pooled by how
            well they predict labels that they have not seen. A module of yours is always alone.
        cross_fit: k, to judge every label by classifiers that were not trained on it, each trained without a k-th of
            the samples. 0 judges by the one network, which has seen the labels. None is 5 where there are several
            classifiers; for the network alone 3 up to 1,000 samples and 0 above, or 0 with evidence="network".
        unlabelled: "error" refuses missing labels (None, NaN); "predict" learns from the others, and gives samples
            without label a predicted one, unjudged.
        precision: aimed at by `find_label_issues`: about this share of the labels it names is wrong.
        device: "auto" (CUDA where there is one), or a name of torch.
        random_state: an int for the same result every time.
        checkpoint_dir: folder in which training is saved; the same call goes on there after a crash or Ctrl-C.
        verbose: 1 shows progress with the time left.

    Attributes:
        classes_: the labels in order.
        module_: the trained network; None where it had nothing to add to the evidence.
        estimator_: the user's estimator, fitted to all samples.
        label_quality_: (n,) probability that the label of a training sample is right; NaN without label.
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
            probabilities (n, c); -1 for the fold of a sample without label.
        odd_labels_: classes that may be misspelled or have one sample, see `vri.estimator.odd_labels.OddLabel`.
        history_: rows of numbers, one an epoch.
        remarks_: what was odd, such as a class of which no sample could be chosen, or an estimate that contradicts how
            well labels are predicted out of sample (also a warning, but for a network alone).
    """

    fold_: Indices

    def __init__(
        self,
        module: Module | None = None,
        *,
        estimator: Any = None,
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
        unlabelled: str = "error",
        precision: float = 0.8,
        device: str = "auto",
        random_state: Any = None,
        checkpoint_dir: str | Path | None = None,
        verbose: int = 0,
    ) -> None:
        self.module = module
        self.estimator = estimator
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
        self.unlabelled = unlabelled
        self.precision = precision
        self.device = device
        self.random_state = random_state
        self.checkpoint_dir = checkpoint_dir
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, trusted: Any = None) -> Self:
        """Learn from samples whose labels may be wrong.

        Args:
            X: (n, d) array, frame of numbers or sparse matrix. With `module` also arrays of any shape (n, …), several
                of them in a dict (passed to the module by keyword) or in a tuple, or a `torch.utils.data.Dataset` of
                inputs or of (inputs, label). With `estimator`, what that takes.
            y: (n,) labels: numbers, strings or anything hashable; may be left out if X brings them.
            trusted: (n,) mask of the labels known to be right; without it, samples are chosen to stand in for them.
        """
        checks.settings(self)
        index = next((part.index for part in (X, y) if isinstance(part, pd.DataFrame | pd.Series)), None)
        X, own_labels = self._check_inputs(X, fitting=True)
        if y is None:
            y = own_labels if own_labels is not None or not isinstance(X, samples.Items) else samples.labels_of(X)
        if y is None:
            raise ValueError("this VRIClassifier requires y to be passed, but the target y is None; X has no labels")
        self.classes_, given = encode(y, self.unlabelled)
        if len(given) != _count(X):
            raise ValueError(f"X has {_count(X)} samples and y {len(given)} labels; expected as many")
        if not len(given):
            raise ValueError("X has 0 sample(s); expected at least 2")
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class, {self.classes_.tolist()[0]!r}: expected at least 2 classes to tell apart"
            )
        mask = as_mask(trusted, len(given))
        labelled = checks.labelled(given, mask)
        everything, rows = X, np.flatnonzero(labelled)
        if not labelled.all():
            X, given, mask = self._part(X, rows), given[rows], None if mask is None else mask[rows]
        mask = checks.usable(mask, given, self.classes_)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._look(X, given)
        self.module_ = None
        self.history_ = []
        self._ensemble: Ensemble | None = None
        self.evidence_ = {}
        self.evidence_weights_: dict[str, float] = {}
        for name in ("fold_", "out_of_sample_proba_"):  # of an earlier call
            self.__dict__.pop(name, None)
        if self.estimator is not None:
            self._judge_by_estimator(X, given, mask, seed)
        else:
            self._judge_by_our_own(X, given, mask, seed)
        if not labelled.all():
            self._add_unlabelled(everything, labelled)
        self._index = index
        return self

    def predict_proba(self, X: Any) -> Floats:
        """(n, c) probability of each class, in the order of `classes_`."""
        check_is_fitted(self)
        return self._probabilities(self._check_inputs(X, fitting=False)[0])

    def predict(self, X: Any) -> NDArray[Any]:
        """(n,) most probable class."""
        check_is_fitted(self)
        chosen: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(1)]
        return chosen

    def find_label_issues(self, threshold: float | None = None) -> pd.DataFrame:
        """What became of the label of every training sample, in their order, with the index of X and cleanlab's names.

        `label_quality` is the probability that the label is right. `predicted_label` is what it should be if it is
        wrong, `predicted_probability` how sure that is; the second and third likely labels follow. Trusted labels are
        never issues. Samples without label have a predicted one, and no quality.

        Args:
            threshold: quality below which a label is named; by default `threshold_`, which comes from `precision`.
        """
        check_is_fitted(self)
        if not hasattr(self, "_found"):
            raise ValueError(
                "this classifier was loaded from a file, which has nothing about the labels it was trained on; fit one"
            )
        found = self._found
        if threshold is not None:
            found = replace(found, threshold=checked_threshold(threshold))
        return found.frame(self._index)

    def features(self, X: Any) -> NDArray[np.float32]:
        """(n, d) what the last layer of the network reads; samples that are alike to it are near each other."""
        check_is_fitted(self)
        if self.module_ is None:
            raise ValueError(
                'no network has a part in this classifier, so it has no features; fit with evidence="network"'
            )
        found: NDArray[np.float32] = self._outputs(self._inputs(self._check_inputs(X, fitting=False)[0]))[1].numpy()
        return found

    def save(self, path: str | Path) -> None:
        """Write network, scaling and classes to one .safetensors file; it holds no code."""
        check_is_fitted(self)
        storage.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, module: Module | None = None, estimator: Any = None) -> Self:
        """A classifier that predicts, from `save`.

        A network of your own must be given again as `module`. A scikit-learn estimator of your own is not in the file:
        keep the fitted `estimator_` and give it as `estimator`.
        """
        found: Self = storage.load(cls, Path(path), module, estimator)
        return found

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
            return _FEW_FOLDS if "forest" in names and samples > ensemble.LARGE else _FOLDS
        return _FEW_FOLDS if self.evidence == "auto" and samples <= _SMALL else 0

    def _judge_by_our_own(self, X: Any, given: Indices, mask: Mask | None, seed: int) -> None:
        """By the network, or by classifiers of ours."""
        whole = not samples.several(X) and self.module is not None and X.dtype.kind in "iu" and X.dtype != np.uint8
        if samples.several(X):
            self._scaling = Scaling("none", np.zeros(0, np.float32), np.zeros(0, np.float32))
        else:
            integers = whole and self._takes_integers(X, seed)
            self._scaling = Scaling.learn(X, self.module is not None, seed, integers)
        inputs = self._inputs(X)
        names = self._names(X)
        folds = self._fold_count(len(given), names)
        if folds:
            self._judge_unseen(X, inputs, given, mask, names, folds, seed)
        else:
            self._judge_seen(inputs, given, mask, seed)

    def _judge_by_estimator(self, X: Any, given: Indices, mask: Mask | None, seed: int) -> None:
        """By copies of the user's estimator that have not learned from the labels they judge."""
        own = OwnEstimator(self.estimator, self.classes_)
        folds = self._folds(given, self.cross_fit or _FOLDS, seed)
        evidence = own_estimator.gather(own, X, given, mask, folds, seed)
        self._conclude_unseen(evidence, evidence.pooled, given, mask)
        self._own = own.fit(X, evidence.targets)
        self.estimator_ = self._own.estimator
        self._pool = evidence.pool
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))

    def _judge_seen(self, inputs: Any, given: Indices, mask: Mask | None, seed: int) -> None:
        """By the network that has learned from the labels, and what it believed on the way."""
        fitted = self._train_on_all(inputs, given, mask, seed)
        report(0.0, "judging")
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
        held_out = [float(row["validation_accuracy"] or 0) for row in fitted.history if "validation_accuracy" in row]
        best = max(held_out) if held_out and mask is None else None
        self.remarks_ += contradictions(self.noise_rate_, best, given, aloud=False)
        self._conclude(right.numpy(), beliefs.numpy(), given, judged.numpy())

    def _judge_unseen(
        self,
        X: Any,
        inputs: Any,
        given: Indices,
        mask: Mask | None,
        names: tuple[str, ...],
        count: int,
        seed: int,
    ) -> None:
        """By classifiers that have not learned from the labels they judge."""
        folds = self._folds(given, count, seed)

        def network(rows: Indices, held: Indices, targets: Floats, number: int) -> Floats:
            if self.verbose and not is_watched():
                print(f"fold {number + 1} of {len(folds)}", file=sys.stderr)
            own_seed = derive_seed(seed, number) % 2**31
            found: Floats = self._train(inputs, given, mask, rows, held, own_seed, f"fold-{number}").beliefs.numpy()
            return found

        views = self._views(X, inputs)
        cross_fitted = len(folds) / (len(folds) + 1)
        with portion(0, cross_fitted):
            evidence = ensemble.gather(names, views, given, mask, folds, len(self.classes_), seed, network)
        if evidence.weights.get(ensemble.NETWORK, 0.0) > 0:
            with portion(cross_fitted, 1):
                self._train_on_all(inputs, given, mask, seed)
        alone = names == (ensemble.NETWORK,)
        if not alone:
            self._ensemble = ensemble.refit(evidence, views, seed)
        self._conclude_unseen(evidence, evidence.said[ensemble.NETWORK] if alone else evidence.pooled, given, mask)

    def _conclude_unseen(self, evidence: Evidence, probabilities: Floats, given: Indices, mask: Mask | None) -> None:
        rows = np.arange(len(given))
        self.evidence_weights_ = evidence.weights
        self.out_of_sample_proba_ = probabilities
        self.evidence_ |= {name: said[rows, given] for name, said in evidence.said.items()}
        self.evidence_["probability"] = probabilities[rows, given]
        judgement = evidence.judgement
        free = np.ones(len(given), bool) if mask is None else ~mask
        self.transition_matrix_ = judgement.transitions
        self.noise_rate_, self.noise_rate_interval_ = judgement.noise_rate, judgement.noise_interval
        self.outlier_score_ = quality.outlier_score(torch.from_numpy(evidence.pooled)).numpy()
        agreement = float((evidence.pooled.argmax(1) == given)[free].mean()) if free.any() else None
        aloud = list(evidence.said) != [ensemble.NETWORK]
        self.remarks_ += contradictions(self.noise_rate_, agreement, given[free], aloud)
        self._conclude(np.where(free, judgement.quality, 1.0), judgement.beliefs, given, free if free.any() else ~free)

    def _conclude(self, right: Floats, beliefs: Floats, given: Indices, judged: Mask) -> None:
        """Which labels are named, and what they should be."""
        self.label_quality_ = right
        self.threshold_ = quality.threshold(torch.from_numpy(right[judged]), self.precision)
        self._found = LabelIssues(
            self.classes_,
            given,
            right,
            *likely_classes(beliefs),
            self.outlier_score_,
            self.threshold_,
            self.noise_rate_,
            self.noise_rate_interval_,
            self.transition_matrix_,
        )

    def _add_unlabelled(self, X: Any, labelled: Mask) -> None:
        """Put samples without label back among the others, with what is predicted for them."""
        rows = np.flatnonzero(~labelled)
        said = self._probabilities(self._part(X, rows))

        def spread(values: NDArray[Any], rest: Any) -> NDArray[Any]:
            whole = np.empty((len(labelled), *values.shape[1:]), values.dtype)
            whole[labelled], whole[rows] = values, rest
            return whole

        self.label_quality_ = spread(self.label_quality_, np.nan)
        outlier = quality.outlier_score(torch.from_numpy(said)).numpy()
        self.outlier_score_ = spread(self.outlier_score_, outlier)
        self.evidence_ = {name: spread(values, np.nan) for name, values in self.evidence_.items()}
        if hasattr(self, "fold_"):
            self.fold_ = spread(self.fold_, MISSING)
            self.out_of_sample_proba_ = spread(self.out_of_sample_proba_, said)
        likely, probability = likely_classes(said)
        self._found = replace(
            self._found,
            given=spread(self._found.given, MISSING),
            quality=self.label_quality_,
            likely=spread(self._found.likely, likely),
            probability=spread(self._found.probability, probability),
            outlier=self.outlier_score_,
        )

    def _look(self, X: Any, given: Indices) -> None:
        """Remark on what is odd before anything is learned; warn of what is most probably a mistake."""
        self.odd_labels_ = odd_classes(self.classes_, np.bincount(given))
        self.remarks_ = [odd.text for odd in self.odd_labels_]
        mistakes = [odd.text for odd in self.odd_labels_ if odd.suggestion is not None]
        if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "fiub":
            columns = copies_of_label(X, given)
            names = getattr(self, "feature_names_in_", np.arange(X.shape[1]))
            if columns:
                shown = ", ".join(repr(name) for name in names[columns[:5]].tolist())
                mistakes.append(
                    f"column {shown} of X gives away every label: it looks like a copy of y, and no label can be found "
                    "wrong by it; leave it out"
                )
                self.remarks_.append(mistakes[-1])
        if mistakes:
            warnings.warn("; ".join(mistakes), checks.OddDataWarning, stacklevel=3)

    def _probabilities(self, X: Any) -> Floats:
        """(n, c) for inputs that have been checked."""
        if self.estimator is not None:
            return self._pool([self._own.predict(X)])
        inputs = self._inputs(X)
        network: Floats | None = None
        if self.module_ is not None:
            network = self._outputs(inputs)[0].softmax(1).numpy()
        if self._ensemble is not None:
            return self._ensemble.predict(self._views(X, inputs), network)
        assert network is not None
        return network

    def _inputs(self, X: Any) -> Any:
        """What networks learn from."""
        return X if samples.several(X) else self._scaling.apply(X)

    def _part(self, X: Any, rows: Indices) -> Any:
        if self.estimator is not None:
            return _safe_indexing(X, rows)
        return samples.part(X, torch.from_numpy(rows)) if samples.several(X) else X[rows]

    def _folds(self, given: Indices, count: int, seed: int) -> list[tuple[Indices, Indices]]:
        folds = folds_of(given, count, seed)
        self.fold_ = np.zeros(len(given), np.int64)
        for number, (_, held) in enumerate(folds):
            self.fold_[held] = number
        return folds

    def _views(self, X: Any, inputs: Tensor) -> Views:
        """Inputs as the members want them."""
        if self._scaling.kind != "columns":
            return Views(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32), None)
        scaled = inputs.numpy()
        wide = self._scaling.projection is not None
        gaps = not sparse.issparse(X) and bool(np.isnan(X).any())
        with_gaps = self._scaling.apply(X, keep_gaps=True).numpy() if gaps else scaled
        return Views(scaled, with_gaps, X if wide else None)

    def _check_inputs(self, X: Any, *, fitting: bool) -> tuple[Any, Any]:
        """X as an array, a CSR matrix, or what only networks and estimators of the user's take; and labels it brings.

        scikit-learn's own checks and messages where it has some.
        """
        if self.estimator is not None:
            return indexable(X)[0], None
        labels = None
        if samples.several(X):
            what = type(X).__name__
            X, labels = samples.prepare(X)
            if not isinstance(X, Tensor):
                if self.module is None:
                    raise ValueError(
                        f"X is a {what}; expected a table of numbers, or a network that takes such inputs: pass it as "
                        "module="
                    )
                return X, labels
        if isinstance(X, Tensor):
            X = X.detach().cpu().numpy()
        images = self.module is not None
        kind = getattr(X, "dtype", np.dtype("O")) if hasattr(X, "shape") else np.asarray(X).dtype if images else None
        keep = images and getattr(kind, "kind", "") in "iu"
        if images and not fitting and self._scaling.kind == "integers" and not keep:
            raise ValueError("X has floats; expected integers, as in fit (token ids): convert them")
        try:
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
        except ValueError as error:
            raise checks.about_text(X, error) from None
        return checked, labels

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.estimator is not None and own_estimator.check(self.estimator) is None:
            tags.input_tags = get_tags(self.estimator).input_tags
            return tags
        tags.input_tags.sparse = self.module is None
        tags.input_tags.allow_nan = self.module is None
        tags.input_tags.three_d_array = self.module is not None
        return tags


def _count(X: Any) -> int:
    return samples.count(X) if samples.several(X) else int(_num_samples(X))
