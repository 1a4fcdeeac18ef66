"""Columns of a table as the inputs of a classifier: numbers, categories, and text by TF-IDF."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from vri.cleaning.tables import Table, is_missing
from vri.data.lists import shorten

MOST_CATEGORIES = 100  # a column with more is text, not a choice among few
_MOST_ODD = 0.1  # share of the filled cells of a column of numbers that may be something else
_MOST_TERMS = 50_000
_TEXT_PARTS = 256  # numbers that a text becomes if there are other columns

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Inputs:
    """What a classifier reads.

    Attributes:
        X: (n, d) numbers, or a sparse matrix if there is only text; with an encoder, None then.
        text: the column that became TF-IDF or is left to an encoder, or None.
        names: of the columns that are used.
        notes: what was left out, and why.
        columns: the column that each column of X comes from; empty if there is only text.
    """

    X: Any
    text: str | None
    names: tuple[str, ...]
    notes: tuple[str, ...]
    columns: tuple[str, ...] = ()


def table_inputs(
    table: Table, features: Sequence[str] | None, text: str | None, other: set[str], seed: int, encoded: bool = False
) -> Inputs:
    """Choose the columns and turn them into numbers.

    `features` and `text` name the columns to use. Without both, these are all columns that are numbers or have few
    values, or the only column of text if there is no other.

    Args:
        table: where the columns are.
        features: names of the columns to use.
        text: name of a column of text.
        other: columns that are not features: label, id, trusted.
        seed: of the projection of text that is used with other columns.
        encoded: leave the text to an encoder.
    """
    read = (lambda *_: None) if encoded else tfidf
    wrong = [name for name in (*(features or ()), *([text] if text else ())) if name in other]
    if wrong:
        raise ValueError(f"{shorten(wrong)} can't be a feature: it is the label, the id or trusted; leave it out")
    if features is None and text is not None:
        left = [name for name in table.columns if name not in other and name != text]
        notes = (f"not used beside the text: {shorten(left)} (name them with --features to use them)",) if left else ()
        return Inputs(read(table.column(text, "--text"), text), text, (text,), notes)
    candidates = list(features) if features is not None else [n for n in table.columns if n not in other]
    candidates = [name for name in candidates if name != text]
    blocks, used, notes_list, texts = [], [], [], []
    for name in candidates:
        block, why_not = _block(table, name)
        if block is not None:
            blocks.append(block)
            used.append(name)
            notes_list += [why_not] if why_not else []
        elif features is not None:
            raise ValueError(
                f"--features names {name!r}, which {why_not}; expected numbers, or at most {MOST_CATEGORIES} different "
                "values: leave it out, or pass a column of text as --text"
            )
        else:
            notes_list.append(f"column {name!r} is not used: it {why_not}")
            texts += [name] if why_not.startswith("is text") else []
    if text is None and not blocks and len(texts) == 1:
        return Inputs(read(table.columns[texts[0]], texts[0]), texts[0], (texts[0],), ())
    if not blocks and text is None:
        reason = f"; {'; '.join(notes_list)}" if notes_list else ""
        raise ValueError(
            f"{table.path} has no columns to learn from beside {', '.join(sorted(other))}{reason}; expected numbers or "
            "categories, or text: name a column of text with --text"
        )
    if text is None and encoded:
        raise ValueError(
            f"--encoder reads text, and {table.path} has none among {shorten(used)}; expected a column of text: name "
            "it with --text, or leave --encoder out"
        )
    if text is not None:
        terms = read(table.column(text, "--text"), text)
        blocks += [] if terms is None else [_projected(terms, seed)]
        used.append(text)
    columns = tuple(name for name, block in zip(used, blocks, strict=False) for _ in range(block.shape[1]))
    return Inputs(np.concatenate(blocks, axis=1) if blocks else None, text, tuple(used), tuple(notes_list), columns)


def tfidf(texts: Sequence[Any], name: str) -> Any:
    """Words and pairs of words that occur in at least two texts, weighted by TF-IDF: sparse (n, at most 50,000)."""
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), min_df=2, max_features=_MOST_TERMS, sublinear_tf=True, dtype=np.float32
    )
    try:
        return vectorizer.fit_transform("" if t is None else str(t) for t in texts)
    except ValueError:
        raise ValueError(f"no two rows of column {name!r} share a word; expected text: choose another column") from None


def _block(table: Table, name: str) -> tuple[Numbers | None, str]:
    """The numbers (n, k) that a column becomes, and a remark or nothing; or None, and why it can't be used."""
    values = table.column(name, "--features")
    filled = [value for value in values if not is_missing(value)]
    if not filled:
        return None, "is empty"
    if any(isinstance(value, (list, dict, bytes)) for value in filled):
        vectors = _vectors(values)
        return (vectors, "") if vectors is not None else (None, f"holds values of type {type(filled[0]).__name__}")
    numbers = np.array([np.nan if is_missing(value) else _number(value, table.decimal_comma) for value in values])
    infinite = np.flatnonzero(np.isinf(numbers))
    if len(infinite):
        raise ValueError(
            f"column {name!r} is infinite in {len(infinite):,} rows: {shorten(map(str, infinite))} (from 0); "
            "expected numbers: correct them, or leave the cells empty"
        )
    odd = [value for value, number in zip(values, numbers, strict=True) if np.isnan(number) and not is_missing(value)]
    if len(odd) <= _MOST_ODD * len(filled):
        which = shorten(map(repr, dict.fromkeys(odd)))
        remark = f"column {name!r} has no number in {len(odd):,} of {len(values):,} rows ({which}); treated as missing"
        return _imputed(numbers), remark if odd else ""
    categories = sorted({_category(value) for value in values})
    if len(categories) > MOST_CATEGORIES or len(categories) > len(values) // 2:
        return None, f"is text ({len(categories):,} different values in {len(values):,} rows)"
    place = {category: number for number, category in enumerate(categories)}
    return np.eye(len(categories))[[place[_category(value)] for value in values]], ""


def _number(value: Any, decimal_comma: bool) -> float:
    """A cell as a number, NaN if it is none."""
    try:
        return float(value.replace(",", ".") if decimal_comma and isinstance(value, str) else value)
    except (TypeError, ValueError):
        return math.nan


def _vectors(values: Sequence[Any]) -> Numbers | None:
    """A column of embeddings (n, k), or None if it is something else."""
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError):
        return None
    return found if found.ndim == 2 and np.isfinite(found).all() else None


def _imputed(numbers: Numbers) -> Numbers:
    """The column with its median in empty cells and, if there are any, a column that marks them."""
    empty = np.isnan(numbers)
    if not empty.any():
        return numbers[:, None]
    return np.stack([np.where(empty, np.nanmedian(numbers), numbers), empty.astype(np.float64)], axis=1)


def _category(value: Any) -> str:
    return "" if is_missing(value) else str(value).strip()


def _projected(terms: Any, seed: int) -> Numbers:
    """TF-IDF reduced to few numbers, so that it doesn't outweigh the other columns."""
    projection = TruncatedSVD(min(_TEXT_PARTS, *terms.shape), random_state=seed)
    with np.errstate(invalid="ignore"):  # a share of no variance, where all texts are the same
        return np.asarray(projection.fit_transform(terms), dtype=np.float64)
