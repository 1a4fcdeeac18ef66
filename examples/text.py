"""Texts with wrong labels, in a scikit-learn pipeline: which part of SciPy does a docstring come from?

python examples/text.py
"""

import inspect
import warnings

import numpy as np
from scipy import linalg, signal, stats
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from vri import VRIClassifier

found: dict[str, set[str]] = {}  # the modules of each paragraph
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of functions that SciPy wants to get rid of
    for module in (linalg, signal, stats):
        for name in module.__all__:
            paragraphs = (inspect.getdoc(getattr(module, name)) or "").split("\n\n")
            for paragraph in [text for text in paragraphs if len(text) > 200 and ">>>" not in text][:2]:
                found.setdefault(paragraph, set()).add(module.__name__.removeprefix("scipy."))
texts = [paragraph for paragraph, modules in found.items() if len(modules) == 1]
true = [min(found[paragraph]) for paragraph in texts]

# every fifth label is another one
random = np.random.default_rng(0)
wrong = random.random(len(true)) < 0.2
given = np.array(true)
given[wrong] = [random.choice(sorted({"linalg", "signal", "stats"} - {label})) for label in given[wrong]]

pipe = make_pipeline(TfidfVectorizer(sublinear_tf=True), VRIClassifier(random_state=0))
pipe.fit(texts, given)

issues = pipe[-1].find_label_issues()
named = issues.is_label_issue.to_numpy()
print(f"{len(texts)} paragraphs, {wrong.sum()} of them with a wrong label")
print(f"{named.sum()} labels named, {wrong[named].mean():.0%} of these wrong")
for i in issues.sort_values("label_quality").index[:3]:
    print(f"\nlabelled {given[i]}, looks like {issues.predicted_label[i]} (and is {true[i]}):\n{texts[i][:160]} …")
print(
    f"\nright on {np.mean(pipe.predict(texts) == np.array(true)):.1%} of the paragraphs, labels {np.mean(~wrong):.1%}"
)
