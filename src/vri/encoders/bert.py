"""Sentence encoders of the BERT kind (MiniLM and its like) from a folder of files, without any further package.

Devlin et al., "BERT: pre-training of deep bidirectional transformers" (2019); Reimers and Gurevych, "Sentence-BERT:
sentence embeddings using siamese BERT-networks" (2019).
"""

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

FILES = ("config.json", "vocab.txt", "model.safetensors")

_LONGEST_WORD = 100  # letters; a longer one is unknown
_EPSILON = 1e-12
_TOGETHER = 16  # texts in a pass


class WordPieces:
    """Splits texts into the pieces of a vocabulary: at spaces and punctuation, then the longest pieces first."""

    def __init__(self, vocabulary: Sequence[str], lower: bool, longest: int) -> None:
        self._number = {piece: number for number, piece in enumerate(vocabulary)}
        self._first, self._last, self._unknown = (self._number[name] for name in ("[CLS]", "[SEP]", "[UNK]"))
        self._lower, self._longest = lower, longest
        self._known: dict[str, list[int]] = {}  # words seen before

    def __call__(self, text: str) -> list[int]:
        """Numbers of the pieces, cut off after the longest text that the network knows."""
        found = [self._first]
        for word in self._words(text):
            if word not in self._known:
                self._known[word] = self._pieces(word)
            found += self._known[word]
            if len(found) >= self._longest:
                break
        return [*found[: self._longest - 1], self._last]

    def _words(self, text: str) -> list[str]:
        if self._lower:
            text = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        spread = []
        for letter in text:
            kind = unicodedata.category(letter)
            if letter in "\t\n\r" or kind == "Zs":
                spread.append(" ")
            elif kind[0] == "C" or letter == "\ufffd":
                continue
            else:
                spread.append(f" {letter} " if _stands_alone(letter, kind) else letter)
        return "".join(spread).split()

    def _pieces(self, word: str) -> list[int]:
        found: list[int] = []
        start = 0
        while start < len(word) <= _LONGEST_WORD:
            mark = "##" if start else ""
            end = next((e for e in range(len(word), start, -1) if mark + word[start:e] in self._number), None)
            if end is None:
                break
            found.append(self._number[mark + word[start:end]])
            start = end
        return found if start == len(word) else [self._unknown]


def _stands_alone(letter: str, kind: str) -> bool:
    """Punctuation, all of ASCII that is neither letter nor digit, and Chinese characters."""
    if letter.isascii():
        return not letter.isalnum()
    code = ord(letter)
    return kind[0] == "P" or any(
        low <= code <= high
        for low, high in ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
    )


@dataclass(frozen=True)
class Network:
    """A transformer as names to tensors.

    Attributes:
        weights: with the names of the files.
        heads: of attention.
        layers: how many.
        pool_first: take the first token's output instead of the mean of all.
    """

    weights: Mapping[str, Tensor]
    heads: int
    layers: int
    pool_first: bool

    def __call__(self, tokens: Tensor, there: Tensor) -> Tensor:
        """(n, d) of length 1, from token numbers (n, t) and which of them are there (n, t)."""
        w, embeddings = self.weights, "embeddings."
        x = w[f"{embeddings}word_embeddings.weight"][tokens]  # (n, t, d)
        x = x + w[f"{embeddings}position_embeddings.weight"][: tokens.shape[1]]
        x = self._norm(x + w[f"{embeddings}token_type_embeddings.weight"][0], f"{embeddings}LayerNorm")
        for layer in range(self.layers):
            name = f"encoder.layer.{layer}."
            seen = [self._linear(x, f"{name}attention.self.{part}") for part in ("query", "key", "value")]
            q, k, v = (each.unflatten(2, (self.heads, -1)).transpose(1, 2) for each in seen)  # (n, heads, t, d / heads)
            seen_by = F.scaled_dot_product_attention(q, k, v, attn_mask=there[:, None, None, :])
            x = self._norm(
                x + self._linear(seen_by.transpose(1, 2).flatten(2), f"{name}attention.output.dense"),
                f"{name}attention.output.LayerNorm",
            )
            inner = F.gelu(self._linear(x, f"{name}intermediate.dense"))
            x = self._norm(x + self._linear(inner, f"{name}output.dense"), f"{name}output.LayerNorm")
        if self.pool_first:
            return F.normalize(x[:, 0])
        return F.normalize((x * there[..., None]).sum(1))

    @property
    def width(self) -> int:
        """d."""
        return self.weights["embeddings.LayerNorm.bias"].numel()

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, _EPSILON)


def pieces_of(folder: Path) -> WordPieces:
    """How a folder's network reads texts."""
    settings = _json(folder / "tokenizer_config.json")
    longest = _json(folder / "sentence_bert_config.json").get("max_seq_length") or 512
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return WordPieces(vocabulary, bool(settings.get("do_lower_case", True)), int(longest))


def sentence_encoder(folder: Path, device: torch.device) -> Callable[[list[str]], NDArray[np.float32]]:
    """The encoder of texts in a folder as sentence-transformers writes it; it must be of the BERT kind."""
    config = _json(folder / "config.json")
    if config.get("model_type") != "bert" or config.get("hidden_act") != "gelu":
        raise ValueError(
            f"{folder} holds a network of the kind {config.get('model_type')!r} with {config.get('hidden_act')!r}; "
            "expected 'bert' with 'gelu', such as all-MiniLM-L6-v2: for others write a function, --encoder module:…"
        )
    weights = {
        name.removeprefix("bert."): each.float().to(device) for name, each in load_file(folder / FILES[2]).items()
    }
    first = bool(_json(folder / "1_Pooling" / "config.json").get("pooling_mode_cls_token", False))
    network = Network(weights, config["num_attention_heads"], config["num_hidden_layers"], first)
    pieces = pieces_of(folder)

    def rows(texts: list[str]) -> NDArray[np.float32]:
        tokens = [pieces(text) for text in texts]
        order = np.argsort([len(each) for each in tokens], kind="stable")  # texts of one length: little is filled up
        found = np.zeros((len(texts), network.width), np.float32)
        for start in range(0, len(texts), _TOGETHER):
            some = order[start : start + _TOGETHER]
            numbers, there = padded([tokens[i] for i in some])
            with torch.inference_mode():
                found[some] = network(torch.from_numpy(numbers).to(device), torch.from_numpy(there).to(device)).cpu()
        return found

    return rows


def padded(tokens: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(n, t) numbers, filled up with 0, and which of them are there."""
    there = np.arange(max(map(len, tokens)))[None] < np.array([len(each) for each in tokens])[:, None]
    numbers = np.zeros(there.shape, np.int64)
    numbers[there] = np.concatenate([np.asarray(each, np.int64) for each in tokens])
    return numbers, there


def _json(path: Path) -> dict[str, Any]:
    """The object in a file, or an empty one where there is no file."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; expected an object with the settings of a network")
    return content
