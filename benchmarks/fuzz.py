"""Give every parser of files bytes it never expected: it must refuse them cleanly or read something valid.

    python benchmarks/fuzz.py --minutes 3 --out benchmarks/results/fuzz.json

A parser may raise ValueError or OSError, nothing else. With atheris installed (pip install atheris) inputs are led by
the coverage of our code and of what it calls; without it, hypothesis draws them.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vri import VRIClassifier, noise
from vri.cleaning.arrays import read_arrays
from vri.cleaning.options import SourceOptions
from vri.cleaning.review import read_review
from vri.cleaning.sources import open_source
from vri.cleaning.tables import read_table
from vri.data.downloads import extract
from vri.data.files import manifest
from vri.data.image_files import read_image
from vri.data.lists import read_lines
from vri.data.pickles import read_pickle, read_torch, write_pickle
from vri.data.sets.fashion_mnist import read_idx
from vri.data.splits import load_split, save_split
from vri.paper.settings import resolve
from vri.paper.training_run import read_record
from vri.training.checkpoints import load_checkpoint, save_checkpoint

LARGEST = 1 << 14  # bytes of an input


@dataclass(frozen=True)
class Parser:
    """A function that reads files, and what to begin from."""

    name: str  # of the file
    read: Callable[[Path], object]
    seeds: Sequence[bytes]
    wrap: Callable[[bytes], bytes] = bytes  # what is around the input: archives with a checksum would stop all else


def attempt(parser: Parser, content: bytes, folder: Path) -> bool:
    """Whether the parser read the content; False if it refused it. Any other error is a defect and goes on."""
    path = folder / parser.name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(parser.wrap(content))
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            parser.read(path)
    except (ValueError, OSError):
        return False
    return True


def parsers() -> dict[str, Parser]:
    """All of them, by name."""
    rows = b'text,x,label\na,1,cat\nb,2.5,dog\n"c,\n""",-3e5,cat\n,,dog\n'
    paths = b"path,label,trusted,split\na.png,cat,yes,train\nb/c.png,dog,no,train\nd.png,1,0,test\n"
    review = b"id,given_label,suggested_label,decision,new_label\n1,a,b,accept,b\n'=2,a,b,drop,\n3,a,b,other,c\n"
    settings = b'dataset = "digits"\nepochs = 3\nlr = 0.1\n[options]\nsamples = 2\nkl_weight = 1e-3\n'
    label = SourceOptions(label="label", text="text")
    embeddings = _npz(X=np.eye(3), y=np.array(["a", "b", "a"]), ids=np.arange(3))
    found = {
        "table.csv": Parser("a.csv", read_table, [rows, b"\xef\xbb\xbf" + rows]),
        "table.tsv": Parser("a.tsv", read_table, [rows.replace(b",", b"\t")]),
        "source.csv": Parser("a.csv", lambda path: open_source(path, label), [rows]),
        "manifest.csv": Parser("a.csv", lambda path: manifest(path, check_files=False), [paths]),
        "review.csv": Parser("review.csv", read_review, [review]),
        "settings.toml": Parser("a.toml", lambda path: resolve(str(path)), [settings]),
        "list.txt": Parser("a.txt", read_lines, [b"images/0/1.jpg\nimages/0/2.jpg 3\n"]),
        "record.json": Parser("record.json", lambda path: read_record(path.parent), [b'{"settings": {"seed": 0}}']),
        "cifar.pickle": Parser("data_batch_1", read_pickle, [_pickle()]),
        "archive.tar": Parser("a.tar", _extract, [_tar()]),
        "images.gz": Parser("a.gz", read_idx, [gzip.compress(idx, mtime=0) for idx in _idx()]),
        "images in images.gz": Parser("a.gz", read_idx, _idx(), lambda content: gzip.compress(content, 1, mtime=0)),
        "noise.npz": Parser("noise.npz", noise.load, [_noise()]),
        "split.npz": Parser("split.npz", load_split, [_split()]),
        "embeddings.npz": Parser("a.npz", read_arrays, [embeddings]),
        "human.pt": Parser("a.pt", read_torch, [_torch_pickle()]),
        "checkpoint.pt": Parser("checkpoint.pt", load_checkpoint, [_checkpoint()]),
        "classifier.safetensors": Parser("a.safetensors", VRIClassifier.load, [_classifier()]),
        "image.png": Parser("a.png", lambda path: read_image(path, 10_000), _images()),
    }
    zipped = {
        "noise.npz": found["noise.npz"].seeds[0],
        "split.npz": found["split.npz"].seeds[0],
        "embeddings.npz": embeddings,
        "human.pt": found["human.pt"].seeds[0],
        "checkpoint.pt": found["checkpoint.pt"].seeds[0],
    }
    for name, whole in zipped.items():
        seeds, wrap = _members(whole, _with_checksum if name == "checkpoint.pt" else bytes)
        found[f"members of {name}"] = Parser(found[name].name, found[name].read, seeds, wrap)
    return found


def _members(whole: bytes, finish: Callable[[bytes], bytes]) -> tuple[list[bytes], Callable[[bytes], bytes]]:
    """The files in a zip archive, each after its number; and a function that puts one back in the place of its own."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}

    def wrap(content: bytes) -> bytes:
        chosen = list(files)[content[0] % len(files)] if content else ""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name, held in files.items():
                archive.writestr(name, content[1:] if name == chosen else held)
        return finish(packed.getvalue())

    return [bytes([number]) + content for number, content in enumerate(files.values())], wrap


# whole files


def _saved(write: Callable[[Path], object], name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        return (Path(folder) / name).read_bytes()


def _npz(**arrays: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return content.getvalue()


def _noise() -> bytes:
    made = noise.uniform(None, torch.arange(12) % 3, num_classes=3, rate=0.5)
    return _saved(made.save, "a.npz")


def _split() -> bytes:
    parts = {"train": torch.arange(5), "test": torch.arange(5, 8)}
    return _saved(lambda path: save_split(path, parts), "a.npz")


def _pickle() -> bytes:
    content = {b"labels": [1, 2], b"data": np.zeros((2, 12), np.uint8), b"batch_label": b"one"}
    return _saved(lambda path: write_pickle(path, content), "a")


def _torch_pickle() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", _pickle())
    return content.getvalue()


def _idx() -> list[bytes]:
    shapes = [(2, 3, 3), (4,), (0, 3)]
    heads = [b"\0\0\x08" + bytes([len(s)]) + b"".join(n.to_bytes(4, "big") for n in s) for s in shapes]
    return [head + bytes(int(np.prod(shape))) for head, shape in zip(heads, shapes, strict=True)]


def _tar() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in ("a/b.txt", "c.txt"):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    return content.getvalue()


def _extract(path: Path) -> object:
    """Unpack, and make sure that nothing came to lie beside the folder."""
    target = path.parent / "unpacked"
    before = sorted(os.listdir(path.parent))
    extract(path, target)
    assert set(os.listdir(path.parent)) - {"unpacked"} == set(before) - {"unpacked"}, "a member left the folder"
    return target


def _checkpoint() -> bytes:
    return _saved(lambda path: save_checkpoint(path, {"step": 1, "weights": torch.zeros(2)}), "a.pt")


def _with_checksum(archive: bytes) -> bytes:
    """As `save_checkpoint` ends a file, so that what is inside of a changed one is looked at."""
    body = archive[:-2]  # without the length of a comment
    comment = b"vri sha256 " + hashlib.sha256(body).hexdigest().encode()
    return body + len(comment).to_bytes(2, "little") + comment


def _classifier() -> bytes:
    X = np.random.default_rng(0).normal(size=(30, 3))
    model = VRIClassifier(method="cross-entropy", hidden=(4,), epochs=1, random_state=0).fit(
        X, (X[:, 0] > 0).astype(int)
    )
    return _saved(model.save, "a.safetensors")


def _images() -> list[bytes]:
    from PIL import Image

    found = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF"):
        content = io.BytesIO()
        Image.new("RGB", (5, 4)).save(content, kind)
        found.append(content.getvalue())
    return found


# two ways to draw inputs


def by_hypothesis(parser: Parser, seconds: float, seed: int) -> int:
    """Let hypothesis draw for so long; the number of inputs tried."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as with_seed

    tried, deadline = 0, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:

        @settings(
            max_examples=500,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(contents(parser))
        def check(content: bytes) -> None:
            nonlocal tried
            if time.monotonic() < deadline:
                tried += 1
                attempt(parser, content, Path(folder))

        while time.monotonic() < deadline:
            with_seed(seed)(check)()
            seed += 1
    return tried


def contents(parser: Parser) -> Any:
    """A hypothesis strategy: any bytes, and whole files with some bytes changed, left out or added."""
    from hypothesis import strategies as st

    def change(drawn: tuple[bytes, list[tuple[float, int, bytes]]]) -> bytes:
        content = bytearray(drawn[0])
        for where, length, new in drawn[1]:
            start = int(where * len(content))
            content[start : start + length] = new
        return bytes(content)

    seed = st.sampled_from(list(parser.seeds))
    odd = st.sampled_from(ODD) | st.binary(max_size=8)
    changes = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), odd), max_size=4)
    return st.binary(max_size=300) | st.tuples(seed, changes).map(change)


# pieces that parsers stumble over
ODD = [
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b'"',
    b"'",
    b"\r",
    b"\n\n",
    b",",
    b"\t",
    b"=1+1",
    b"nan",
    b"-inf",
    b"1e400",
    b"9" * 400,
    b"../../x",
    b"/etc/x",
    b"[" * 5000,
    b"(" * 5000,
    b"\xff" * 8,
    b"\x7f\xff\xff\xff",
    b"cos\nsystem\n",
    b"cbuiltins\neval\n",
    b"r\xff\xff\xff\x1f",
    b"\x96\xff\xff\xff\xff\xff\x00\x00\x00",
]


def by_atheris(name: str, parser: Parser, seconds: float, seed: int) -> int:
    """Let atheris draw in a process of its own; the number of inputs tried."""
    with tempfile.TemporaryDirectory() as corpus:
        for number, content in enumerate(parser.seeds):
            (Path(corpus) / str(number)).write_bytes(content)
        dictionary = Path(corpus).with_suffix(".dict")
        dictionary.write_text("".join(f'"{_quoted(piece)}"\n' for piece in ODD if len(piece) < 64))
        command = [sys.executable, __file__, "--inside", name, f"-max_total_time={max(1, int(seconds))}"]
        command += [f"-seed={seed + 1}", f"-max_len={LARGEST}", f"-dict={dictionary}", "-rss_limit_mb=4000"]
        command += ["-timeout=20", f"-artifact_prefix={tempfile.gettempdir()}/fuzz-{name.replace(' ', '-')}-", corpus]
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        dictionary.unlink()
    done = re.search(r"Done (\d+) (?:runs )?in", answer.stderr)
    if answer.returncode or done is None:
        raise RuntimeError(f"{name}: {answer.stdout[-1500:]}\n{answer.stderr[-4000:]}")
    return int(done.group(1))


def _quoted(piece: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in piece)


def inside(name: str, arguments: Sequence[str]) -> None:
    """The process that atheris runs in."""
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

    parser = parsers()[name]
    for module in [m for n, m in sys.modules.items() if n.startswith("vri.") or n in ("csv", "tomllib._parser")]:
        for each in list(vars(module).values()):
            if getattr(each, "__module__", None) == module.__name__ and type(each).__name__ == "function":
                atheris.instrument_func(each)
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))

    def one(content: bytes) -> None:
        attempt(parser, content, folder)

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0, help="for all parsers together")
    parser.add_argument("--only", nargs="*", help="names of parsers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=["auto", "atheris", "hypothesis"], default="auto")
    parser.add_argument("--out", type=Path, help="JSON file for the counts")
    options = parser.parse_args()
    engine = options.engine
    if engine == "auto":
        from importlib.util import find_spec

        engine = "atheris" if find_spec("atheris") else "hypothesis"
    chosen = {name: each for name, each in parsers().items() if not options.only or name in options.only}
    seconds = 60 * options.minutes / len(chosen)
    tried: dict[str, int] = {}
    defects: dict[str, str] = {}
    for name, each in chosen.items():
        try:
            if engine == "atheris":
                tried[name] = by_atheris(name, each, seconds, options.seed)
            else:
                tried[name] = by_hypothesis(each, seconds, options.seed)
        except Exception as error:
            defects[name] = f"{type(error).__name__}: {error}"
        print(f"{name}: {tried.get(name, defects.get(name))}", flush=True)
    if options.out is not None:
        about = {"engine": engine, "minutes": options.minutes, "seed": options.seed}
        options.out.write_text(json.dumps({**about, "inputs": tried, "defects": defects}, indent=1) + "\n")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
