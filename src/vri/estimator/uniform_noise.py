"""The model of the noise for thousands of classes: one number instead of a matrix."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from vri.estimator.noise_model import POWER, POWER_RIDGE, POWERS, RIDGE, Floats, Labels

_TRIED = np.exp(np.linspace(*POWERS, 29))
_TINY = 1e-6
_ROUNDS = 200


@dataclass(frozen=True)
class UniformNoise:
    """`NoiseModel("uniform")` without its matrix and its biases: a wrong label is any other class alike.

    Attributes:
        power: of the probabilities, which makes them P(true class | inputs).
        rate: share of wrong labels.
    """

    power: float
    rate: float

    @classmethod
    def fit(cls, probabilities: Floats, given: Labels) -> Self:
        """The most likely power and rate.

        For a power, what the labels say depends on the probability of the given class alone, so that each power costs
        one sum over the classes; the rate that goes with it comes from expectation-maximisation on single numbers.
        """
        count, classes = probabilities.shape
        logs = np.log(np.clip(probabilities, _TINY, 1)).astype(np.float32)
        own = logs[np.arange(count), given].astype(np.float64)
        best, found = -np.inf, cls(POWER, 0.0)
        for power in _TRIED:
            total = np.log(np.exp(np.float32(power) * logs).sum(1, dtype=np.float64))
            right = np.exp(power * own - total)  # (n,) P(true class = given one | inputs)
            rate = _most_likely_rate(right, classes)
            likelihood = np.log((1 - rate) * right + rate * (1 - right) / (classes - 1)).sum()
            unusual = np.log(power) - np.log(POWER)
            score = float(likelihood - max(RIDGE, POWER_RIDGE * count) * unusual**2)
            if score > best:
                best, found = score, cls(float(power), rate)
        return found

    def posterior(self, probabilities: Floats, given: Labels) -> tuple[Floats, float]:
        """P(true class | inputs, given label), (n, c), and the mean log-likelihood of the labels."""
        rows, classes = np.arange(len(given)), probabilities.shape[1]
        joint = np.clip(probabilities, _TINY, 1) ** self.power
        joint /= joint.sum(1, keepdims=True)
        own = joint[rows, given]
        joint *= self.rate / (classes - 1)
        joint[rows, given] = (1 - self.rate) * own
        total = joint.sum(1, keepdims=True).clip(1e-300)
        joint /= total
        return joint, float(np.log(total).mean())


def _most_likely_rate(right: Floats, classes: int) -> float:
    """The rate for samples whose label is the true class with these probabilities, going by the inputs."""
    rate = 0.3
    for _ in range(_ROUNDS):
        kept = (1 - rate) * right
        before, rate = (
            rate,
            1 - float((kept / (kept + rate * (1 - right) / (classes - 1))).sum() + 0.9) / (len(right) + 1),
        )
        rate = float(np.clip(rate, 1e-3, 0.8))
        if abs(rate - before) < 1e-6:
            break
    return rate
