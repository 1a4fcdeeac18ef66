"""A small transformer on token ids, given as Hugging Face gives its batches: a dict of input_ids and attention_mask.

python examples/transformer.py
"""

import inspect
import re
import warnings
from collections import Counter

import numpy as np
import torch
from scipy import linalg, signal, stats
from torch import Tensor, nn

from vri import VRIClassifier

WORDS, LENGTH, WIDTH, HEADS = 2000, 32, 32, 4


class Layer(nn.Module):
    """Attention, then two linear layers, each on top of what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.project(self.before(x)).chunk(3, 2))
        scores = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(mask[:, None, None, :] == 0, -1e9)
        x = x + self.join((scores.softmax(3) @ v).transpose(1, 2).flatten(2))
        return x + self.think(self.between(x))


class Transformer(nn.Module):
    """Logits for a batch of texts; its arguments have the names of the inputs."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.layers = nn.ModuleList([Layer()])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(input_ids) * WIDTH**0.5 + self.places
        for layer in self.layers:
            x = layer(x, attention_mask)
        kept = attention_mask[:, :, None]
        return self.head((self.norm(x) * kept).sum(1) / kept.sum(1))


# which part of SciPy does a paragraph of a docstring come from?
texts, true = [], []
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of functions that SciPy wants to get rid of
    for number, module in enumerate((linalg, signal, stats)):
        before = len(texts)
        for name in module.__all__:
            for paragraph in (inspect.getdoc(getattr(module, name)) or "").split("\n\n"):
                words = re.findall(r"[a-z]+", paragraph.lower())
                if len(words) > 20 and ">>>" not in paragraph:
                    texts.append(words[:LENGTH])
                    true.append(number)
        texts, true = texts[: before + 550], true[: before + 550]  # about as many of each

# every fifth label is another one
random = np.random.default_rng(0)
true = np.array(true)
wrong = random.random(len(true)) < 0.2
given = np.where(wrong, (true + random.integers(1, 3, len(true))) % 3, true)

# 0 fills up, 1 is every word that is not frequent
numbers = {word: i + 2 for i, (word, _) in enumerate(Counter(w for text in texts for w in text).most_common(WORDS - 2))}
ids = np.zeros((len(texts), LENGTH), np.int64)
for row, text in zip(ids, texts, strict=True):
    row[: len(text)] = [numbers.get(word, 1) for word in text]
inputs = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}

clf = VRIClassifier(Transformer, epochs=8, batch_size=64, random_state=0).fit(inputs, given)
issues = clf.find_label_issues()
named = issues.is_label_issue.to_numpy()
print(f"{len(true)} paragraphs, {wrong.sum()} of them with a wrong label")
print(f"{named.sum()} labels named, {wrong[named].mean():.0%} of these wrong")
print(f"right on {np.mean(clf.predict(inputs) == true):.1%} of the paragraphs, labels {np.mean(~wrong):.1%}")
