"""A table whose labels nobody trusts: which of them are wrong, and a better model.

python examples/table.py
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from vri import VRIClassifier

x, y = load_breast_cancer(return_X_y=True, as_frame=True)
names = y.map({0: "malignant", 1: "benign"})
x, x_test, names, names_test = train_test_split(x, names, test_size=0.3, random_state=0, stratify=names)

# someone confused every fifth malignant tumour and every tenth benign one
random = np.random.default_rng(0)
wrong = random.random(len(names)) < np.where(names == "malignant", 0.2, 0.1)
given = names.where(~wrong, names.map({"malignant": "benign", "benign": "malignant"}))

clf = VRIClassifier(random_state=0).fit(x, given)

issues = clf.find_label_issues()
named = issues.is_label_issue.to_numpy()
print(issues.sort_values("label_quality").head(8).to_string())
print(f"\n{named.sum()} labels named, {wrong[named].mean():.0%} of them wrong; {wrong.sum()} labels are wrong in truth")
print(f"estimated share of wrong labels {clf.noise_rate_:.1%}, in truth {wrong.mean():.1%}")
print(f"how labels got confused (rows: true {', '.join(clf.classes_)}):\n{clf.transition_matrix_.round(2)}")
print(f"accuracy on new samples: {clf.score(x_test, names_test):.1%}")
