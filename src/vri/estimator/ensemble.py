"""Several classifiers judge the labels out of sample, learn from what was found, and predict together.

1. Every member learns from the given labels, fold by fold, and says what it thinks of the samples it has not seen.
2. The members are pooled by the likelihood of the given labels, and a model of the noise says which are wrong.
3. Every member learns again, from what is now believed of the labels; pooled with the first look, and judged again.
4. The members learn once more from all samples. Together they predict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from vri.estimator import noise_model
from vri.estimator.evidence import Fit, Floats, Fold, Labels, Pool, cross_fit
from vri.estimator.kernel import shared
from vri.estimator.labels import Mask
from vri.estimator.members import MEMBERS, Member
from vri.estimator.noise_model import Judgement, NoiseModel
from vri.training.progress import portion

NETWORK = "network"
NAMES = (NETWORK, *MEMBERS)
# above so many samples, or cells of a dense table, all of them together take too long
LARGE, _CELLS = 20_000, 2_500_000
# up to so many samples of at least so many columns, as encoders give them, those in closed form take their place, and
# above it a network; of a narrower table, trees learn more
_LARGEST, _WIDE = 100_000, 100
_FEW = 1000  # samples below which boosting fits their noise
_SHARED = 2000  # samples above which sums are shared between folds
_OF_THE_FIRST = 0.5  # share of the first look where noise looks uniform
_BOOSTED = 400  # columns × trees of a round above which boosting takes longer than all others together


@dataclass(frozen=True, eq=False)
class Views:
    """Inputs as the members want them.

    Attributes:
        scaled: (n, d) dense, brought to the scale that networks like.
        gaps: the same with NaN where there was no value.
        raw: a wide sparse matrix as it came, where `scaled` is a projection of it; or None.
    """

    scaled: NDArray[np.float32]
    gaps: NDArray[np.float32]
    raw: Any

    def of(self, name: str) -> Any:
        """What a member of this name learns from."""
        if self.raw is not None and MEMBERS[name]().raw:
            return self.raw
        return self.gaps if name == "boosting" else self.scaled


def choose(samples: int, columns: int, classes: int, inputs: Any) -> tuple[str, ...]:
    """The members for data of this size and kind; docs/label_issues.md has the rule in words."""
    boosted = samples >= _FEW and columns * (1 if classes == 2 else classes) <= _BOOSTED
    trees = ("forest", *(("boosting",) if boosted else ()))
    if sparse.issparse(inputs):
        if samples > LARGE:
            return (NETWORK,)
        return ("linear", *(("bayes",) if inputs.min() >= 0 else ()), "kernel", "neighbours", "forest")
    if samples <= LARGE and samples * columns <= _CELLS:
        return ("linear", "kernel", "neighbours", *trees)
    if columns < _WIDE:
        return (*(("kernel",) if samples <= _LARGEST else ()), *trees)
    if samples > _LARGEST:
        return (NETWORK,)
    return ("gaussian", "kernel", *(("neighbours",) if samples <= LARGE else ()))


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Members that learned from all samples, and how they are pooled.

    Attributes:
        members: by name; without the network, which the classifier keeps.
        pool: how to pool what they say.
        names: the order of the pool's weights.
    """

    members: Mapping[str, Member]
    pool: Pool
    names: Sequence[str]

    def predict(self, views: Views, network: Floats | None) -> Floats:
        """(n, c) probabilities of the classes; `network` is what the network says."""
        said = []
        for name in self.names:
            if name == NETWORK:
                assert network is not None
                said.append(network)
            else:
                said.append(self.members[name].predict(views.of(name)))
        return self.pool(said)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What came out.

    Attributes:
        said: (n, c) out-of-sample probabilities of each member.
        pooled: (n, c) all together.
        judgement: of the labels.
        targets: (n, c) what the members learn from in the end.
        pool: how they are pooled.
        settings: of each member, as found on the way: a member that has not learned.
    """

    said: dict[str, Floats]
    pooled: Floats
    judgement: Judgement
    targets: Floats
    pool: Pool
    settings: Mapping[str, Member] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, float]:
        """Each member's share in the pool."""
        total = max(float(self.pool.weights.sum()), 1e-12)
        return {name: float(w) / total for name, w in zip(self.said, self.pool.weights, strict=True)}


def gather(
    names: Sequence[str],
    views: Views,
    given: Labels,
    trusted: Mask | None,
    folds: list[Fold],
    classes: int,
    seed: int,
    network: Fit | None,
) -> Evidence:
    """Evidence of members of these names about the given labels."""
    targets = np.eye(classes)[given]
    settings: dict[str, Member] = {name: MEMBERS[name]() for name in names if name != NETWORK}
    sums = {"kernel": shared(views.scaled, folds, seed)} if len(given) > _SHARED else {}
    fits = {name: network if name == NETWORK else sums.get(name) or _fit(name, views, seed, settings) for name in names}
    alone = list(names) == [NETWORK]
    with portion(0, 1 if alone else 0.5):
        said = cross_fit({name: fit for name, fit in fits.items() if fit is not None}, targets, folds, _as_labels)
    if list(said) == [NETWORK]:  # it has doubted the labels while it learned from them
        pool = Pool.fit(list(said.values()), targets)
        pooled = pool(list(said.values()))
        return Evidence(said, pooled, noise_model.judge(pooled, given, trusted, seed), targets, pool, settings)
    explained = [_as_labels(name, p, targets) for name, p in said.items()]
    pooled = Pool.fit(explained, targets)(explained)
    judgement = noise_model.judge(pooled, given, trusted, seed)
    corrected = judgement.beliefs
    again = {name: fit for name in said if name != NETWORK and (fit := fits[name]) is not None}
    settings |= {name: MEMBERS[name]() for name in again}  # other targets, other settings
    with portion(0.5, 1):
        once_more = cross_fit(again, corrected, folds)
    said = {name: once_more.get(name, p) for name, p in said.items() if name in once_more or name == NETWORK}
    pool = Pool.fit(list(said.values()), corrected)
    pooled_again = pool(list(said.values()))
    margins = list(said) != ["gaussian"]  # in embeddings, margins were worse than the model of the noise alone
    share = _OF_THE_FIRST * judgement.shapes["uniform"] if margins else 0.0
    pooled = _both(pooled, pooled_again, share)
    return Evidence(said, pooled, noise_model.judge(pooled, given, trusted, seed, margins), corrected, pool, settings)


def refit(evidence: Evidence, views: Views, seed: int) -> Ensemble:
    """The members, learned from all samples."""
    names = [name for name, weight in evidence.weights.items() if weight > 0] or list(evidence.said)
    weights = np.array([w for name, w in zip(evidence.said, evidence.pool.weights, strict=True) if name in names])
    members = {}
    for name in names:
        if name != NETWORK:
            learned = evidence.settings[name].again().fit(views.of(name), evidence.targets, seed)
            members[name] = learned.from_arrays(learned.arrays())  # as it comes from a file: saving changes nothing
    return Ensemble(members, Pool(weights, evidence.pool.bias, evidence.pool.sizes), names)


def _both(first: Floats, second: Floats, share: float) -> Floats:
    """Geometric mean of two looks. Where labels are flipped from class to class, the first look has learned it."""
    product = first**share * second ** (1 - share)
    found: Floats = product / product.sum(1, keepdims=True)
    return found


def _as_labels(name: str, said: Floats, targets: Floats) -> Floats:
    """What a member expects the given labels to be.

    The network says what the true classes are, and would seem a bad predictor of labels that are often wrong. The
    others have learned to predict the labels, with their mistakes.
    """
    if name != NETWORK:
        return said
    return NoiseModel("full").fit(said, targets.argmax(1)).labels(said)


def _fit(name: str, views: Views, seed: int, settings: dict[str, Member]) -> Fit:
    """Cross-fitting of a member; the settings that it finds on the first fold are kept for the others."""
    x = views.of(name)

    def fit(rows: Labels, held: Labels, targets: Floats, number: int) -> Floats:
        member = settings[name].again().fit(x[rows], targets[rows], seed + number)
        settings[name] = member.again()  # what it has learned is not kept: trees are large
        return member.predict(x[held])

    return fit
