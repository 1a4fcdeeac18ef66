"""scikit-learn's own checks of an estimator."""

from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from vri import VRIClassifier

SMALL = {"hidden": (32,), "method_options": {"hidden": (32,)}}  # of the meta networks: the checks fit it 150 times


@parametrize_with_checks(
    [
        VRIClassifier(epochs=20, batch_size=50, cross_fit=0, random_state=0, **SMALL),
        VRIClassifier(evidence=["linear"], cross_fit=2, random_state=0),
        VRIClassifier(estimator=LogisticRegression(), cross_fit=2, random_state=0),
    ]
)
def test_scikit_learn(estimator, check):
    check(estimator)
