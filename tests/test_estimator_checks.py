"""scikit-learn's own checks of an estimator."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from vri import VRIClassifier


@parametrize_with_checks([VRIClassifier(epochs=20, batch_size=50, random_state=0)])
def test_scikit_learn(estimator, check):
    check(estimator)
