"""What doesn't fit together: the estimated share of wrong labels beside how well labels are predicted out of sample."""

import warnings

import numpy as np
from numpy.typing import NDArray

from vri.estimator.checks import OddDataWarning

Labels = NDArray[np.int64]

_UNEXPLAINED = 0.1  # of the labels: what agreement and estimate may differ by before it is worth a word
_SURE = 2.0  # standard errors
_MANY = 200  # labels from which on a warning is due; of fewer, little can be told
_COMMON = 0.7  # share of a label beyond which its rarer rivals are judged by being rare


def contradictions(noise_rate: float, agreement: float | None, given: Labels, aloud: bool = True) -> list[str]:
    """Sentences on what contradicts what; none where all is well.

    Args:
        noise_rate: the estimated share of wrong labels.
        agreement: share of the given labels that classifiers predicted without having seen them; None if not known.
        given: the labels that were judged.
        aloud: also as warnings, unless labels are few.
    """
    if agreement is None or not len(given):
        return []
    missed = 1 - agreement
    error = float(np.sqrt(max(agreement * missed, 1 / len(given)) / len(given)))
    most = float(np.bincount(given).max() / len(given))
    found = []
    if agreement < most + _SURE * error and most < _COMMON:
        found.append(
            f"labels not seen in training were predicted in {agreement:.0%} of all cases, and the most frequent label "
            f"alone is right in {most:.0%}: from these inputs, labels can't be judged"
        )
    elif missed - noise_rate > max(_UNEXPLAINED, noise_rate) + _SURE * error:
        found.append(
            f"labels not seen in training were predicted in {agreement:.0%} of all cases, but {noise_rate:.0%} are "
            f"estimated to be wrong: the other {missed - noise_rate:.0%} are classes that look alike in these inputs, "
            "or wrong labels that the estimate misses; look at some labels before you rely on it"
        )
    elif noise_rate - missed > _UNEXPLAINED / 2 + _SURE * error:
        found.append(
            f"{noise_rate:.0%} of the labels are estimated to be wrong, but labels not seen in training were predicted "
            f"in {agreement:.0%} of all cases: the estimate is too high, or the same mistakes are made over and over"
        )
    if aloud and len(given) >= _MANY:
        for text in found:
            warnings.warn(text, OddDataWarning, stacklevel=4)
    return found
