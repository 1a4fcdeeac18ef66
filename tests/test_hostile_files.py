"""Files made to do harm, or only broken: refused in clear words, and nothing runs, leaks or fills the memory."""

import importlib.util
import io
import os
import pickle
import re
import struct
import sys
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vri import VRIClassifier, noise
from vri.cleaning.arrays import read_arrays
from vri.cleaning.cells import escape, unescape, write_rows
from vri.cleaning.options import SourceOptions
from vri.cleaning.report import QUALITY_BINS, Summary, Suspect, write_report
from vri.cleaning.review import read_review
from vri.cleaning.sources import open_source
from vri.cleaning.state import Findings, load_found
from vri.cleaning.tables import read_table
from vri.cleaning.text_tables import read_text_rows
from vri.data.downloads import extract
from vri.data.files import manifest
from vri.data.image_files import BrokenImage, ImageFiles, Preparation, read_image
from vri.data.pickles import read_pickle, read_torch
from vri.data.sets.fashion_mnist import read_idx
from vri.data.splits import load_split
from vri.training.checkpoints import load_checkpoint

ROOT = Path(__file__).parents[1]

_spec = importlib.util.spec_from_file_location("fuzz", ROOT / "benchmarks" / "fuzz.py")
assert _spec is not None
assert _spec.loader is not None
fuzz = importlib.util.module_from_spec(_spec)
sys.modules["fuzz"] = fuzz  # dataclasses look their module up
_spec.loader.exec_module(fuzz)

PARSERS = fuzz.parsers()

# any bytes


@pytest.mark.parametrize("name", PARSERS)
def test_any_bytes_are_read_or_refused(name: str, tmp_path: Path) -> None:
    parser = PARSERS[name]

    @settings(max_examples=25, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(fuzz.contents(parser))
    def check(content: bytes) -> None:
        fuzz.attempt(parser, content, tmp_path)

    check()
    for seed in parser.seeds:  # or the test would only see refusals
        if not name.startswith("source"):
            assert fuzz.attempt(parser, seed, tmp_path)


@pytest.mark.parametrize("name", ["noise.npz", "split.npz", "embeddings.npz"])
def test_any_arrays_are_read_or_refused(name: str, tmp_path: Path) -> None:
    parser = PARSERS[name]
    with np.load(io.BytesIO(parser.seeds[0])) as file:
        whole = {key: file[key] for key in file.files}
    kinds = ["<f2", ">f8", "g", "?", ">i8", "u8", "U3", "S2", "M8[s]", "c16", "V4", "i4"]
    shapes = [(), (0,), (1,), (12,), (3, 3), (0, 5), (2, 2, 2)]

    @settings(max_examples=40, deadline=None, database=None, derandomize=True)
    @given(
        st.dictionaries(st.sampled_from([*whole, "other"]), st.tuples(st.sampled_from(kinds), st.sampled_from(shapes)))
    )
    def check(changes: dict[str, tuple[str, tuple[int, ...]]]) -> None:
        content = io.BytesIO()
        np.savez(content, **whole | {key: np.zeros(shape, kind) for key, (kind, shape) in changes.items()})
        fuzz.attempt(parser, content.getvalue(), tmp_path)

    check()


def test_an_unexpected_error_is_not_swallowed(tmp_path: Path) -> None:
    """By the function that the tests above trust."""

    def broken(path: Path) -> None:
        raise KeyError(path.read_bytes())

    with pytest.raises(KeyError, match="abc"):
        fuzz.attempt(fuzz.Parser("a", broken, []), b"abc", tmp_path)


# code in files


class Bomb:
    """Leaves a file where it was unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def plain(folder: Path, bomb: Bomb) -> Path:
    path = folder / "plain"
    path.write_bytes(pickle.dumps({"labels": bomb}, protocol=2))
    return path


def zipped(folder: Path, bomb: Bomb) -> Path:
    path = folder / "a.pt"
    torch.save({"format": 1, "weights": bomb}, path)
    return path


def arrays(folder: Path, bomb: Bomb) -> Path:
    path = folder / "a.npz"
    np.savez(path, X=np.eye(2), y=np.array([bomb, bomb], dtype=object), format=np.str_("vri noise 1"))
    return path


@pytest.mark.parametrize(
    ("make", "read", "works"),
    [
        (plain, read_pickle, pickle.load),
        (zipped, read_torch, None),
        (zipped, load_checkpoint, None),
        (plain, load_checkpoint, None),
        (arrays, noise.load, None),
        (arrays, load_split, None),
        (arrays, read_arrays, None),
        (plain, VRIClassifier.load, None),
    ],
)
def test_no_code_in_a_file_runs(
    make: Callable[[Path, Bomb], Path], read: Callable[[Path], Any], works: Any, tmp_path: Path
) -> None:
    path = make(tmp_path, Bomb(tmp_path / "it ran"))
    with pytest.raises(ValueError, match=re.escape(str(path))):
        read(path)
    assert not (tmp_path / "it ran").exists()
    if works is not None:  # the bomb is a real one
        with path.open("rb") as file:
            works(file)
        assert (tmp_path / "it ran").exists()


def test_a_pickle_that_asks_for_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02}r\xff\xff\xff\x2f.")  # remember the dict as number 805,306,367: 13 GB
    with pytest.raises(ValueError, match="it remembers a value as number 805,306,367"):
        read_pickle(path)


def test_arrays_that_claim_to_be_huge_are_refused(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }\n"
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    with pytest.raises(ValueError, match=r"can't be read as \.npz"):
        read_arrays(path)
    with pytest.raises(ValueError, match="cannot be read as arrays without code"):
        noise.load(path)


def test_damaged_findings_say_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "state" / "findings.npz"
    path.parent.mkdir()
    path.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ValueError, match="is damaged") as caught:
        load_found(path, Findings)
    assert str(caught.value) == f"{path} is damaged; pass --fresh to start again, or another --out"


def test_a_classifier_without_its_description(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "a.safetensors"
    save_file({"module.0.weight": torch.zeros(2)}, path, metadata={"format": "vri classifier 2", "classes": "[0]"})
    with pytest.raises(ValueError, match="is damaged") as caught:
        VRIClassifier.load(path)
    assert str(caught.value) == (
        f"{path} is damaged (KeyError: 'hidden'); expected a file as VRIClassifier.save wrote it"
    )


def test_a_classifier_of_another_version(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "a.safetensors"
    save_file({"module.0.weight": torch.zeros(2)}, path, metadata={"format": "vri classifier 1"})
    with pytest.raises(ValueError, match=r"another version of vri \('vri classifier 1'; expected .*fit again"):
        VRIClassifier.load(path)


@pytest.mark.parametrize("axes", [0, 9, 70, 255])
def test_idx_files_of_many_axes(axes: int, tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(PARSERS["images in images.gz"].wrap(b"\0\0\x08" + bytes([axes]) + b"\0\0\0\1" * axes + b"x"))
    with pytest.raises(ValueError, match="fetch the file again"):
        read_idx(path)


# archives


def link(kind: bytes) -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.linkname, member.size = kind, "../../outside", 0

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("../outside", None),
        ("a/../../outside", None),
        ("/tmp/vri-outside", None),
        ("C:\\outside", None),
        ("..\\outside", None),
        ("a", link(tarfile.SYMTYPE)),
        ("a", link(tarfile.LNKTYPE)),
        ("a", link(tarfile.CHRTYPE)),
        ("a", link(tarfile.FIFOTYPE)),
    ],
)
def test_nothing_is_unpacked_outside(name: str, change: Any, tmp_path: Path) -> None:
    inside = tmp_path / "deep" / "target"
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for each in ("good", name):
            member = tarfile.TarInfo(each)
            member.size = 3
            if each == name and change is not None:
                change(member)
            tar.addfile(member, io.BytesIO(b"abc"))
    with pytest.raises(ValueError, match="refused, fetch the archive from its authors"):
        extract(tmp_path / "a.tar", inside)
    assert sorted(os.listdir(tmp_path)) == ["a.tar"]  # not even the good member
    assert not Path("/tmp/vri-outside").exists()


# images


def png(width: int, height: int) -> bytes:
    """The head of a picture of this size; it needs no pixels to be dangerous."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    packed = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize(
    ("side", "problem"),
    [(8_000, "has 64,000,000 pixels; expected at most 50,000,000"), (60_000, "can't be read as an image")],
)
def test_image_bombs_are_not_decoded(side: int, problem: str, tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "bomb.png").write_bytes(png(side, side))
    Image.new("RGB", (8, 8)).save(tmp_path / "good.png")
    with pytest.raises(BrokenImage, match=problem):
        read_image(tmp_path / "bomb.png", Preparation().max_pixels)
    files = ImageFiles(tmp_path, ["bomb.png", "good.png"], [0, 1], Preparation(8, 8, on_broken="skip"))
    with pytest.warns(UserWarning, match="the next readable sample takes its place"):
        assert files[0][1] == 1
    assert files.broken == ["bomb.png"]


# spreadsheets and pages

FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1+cmd",
    "-1+cmd",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "＝1+1",
    "－1",
    "--1",
    "-1e",
    "=",
]
NUMBERS = ["-1", "+1", "-1.5", "-.5", "+1e-5", "-1.", "-2.5E+10"]


def test_formulas_are_marked_and_numbers_stay(tmp_path: Path) -> None:
    assert [escape(cell) for cell in FORMULAS] == [f"'{cell}" for cell in FORMULAS]
    assert [escape(cell) for cell in NUMBERS] == NUMBERS
    cells = [*FORMULAS, *NUMBERS, *(f"'{cell}" for cell in (*FORMULAS, *NUMBERS)), "'", "a-1", "1-1", ""]
    assert [unescape(escape(cell)) for cell in cells] == cells
    assert unescape("'-1") == "-1"  # as it was written before numbers stayed
    write_rows(tmp_path / "a.csv", ("label",), ([escape(cell)] for cell in NUMBERS))
    assert read_table(tmp_path / "a.csv").columns["label"] == NUMBERS


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(st.text(alphabet="'=+-@\t\r\n＝019.eE a", max_size=8))
def test_cells_come_back(cell: str) -> None:
    there = escape(cell)
    assert unescape(there) == cell
    if there[:1] in ("=", "+", "-", "@", "\t", "\r", "\n", "＝"):
        assert float(there) == float(cell)  # nothing but a number may begin so


def test_the_page_marks_the_same_cells() -> None:
    from vri.cleaning import cells

    script = (ROOT / "src" / "vri" / "cleaning" / "page" / "csv.js").read_text("utf-8")
    found = re.search(r"const FORMULA = /\^(.*)/;", script)
    assert found is not None
    assert found[1] == cells._FORMULA.pattern.replace(r"\Z", "$")


def test_labels_and_names_can_hold_html(tmp_path: Path) -> None:
    bad = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    summary = Summary(
        source=bad,
        classes=[bad, "b"],
        samples=2,
        trusted=0,
        issues=1,
        noise_rate=0.5,
        noise_interval=(0.1, 0.9),
        transition_matrix=[[1.0, 0.0], [0.0, 1.0]],
        pair_counts=[[0, 1], [0, 0]],
        quality_counts=[0] * QUALITY_BINS,
        threshold=0.5,
        accuracy_before=None,
        accuracy_after=None,
        accuracy_on="",
        version="0",
        command=bad,
    )
    suspect = Suspect(id=bad, given=bad, suggested="b", quality=0.1, confidence=0.9, outlier=0.1, fields={bad: bad})
    write_report(tmp_path / "a.html", summary, [suspect])
    page = (tmp_path / "a.html").read_text("utf-8")
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert page.count("</script>") == page.count("<script")


# tables, manifests and lists


@pytest.mark.parametrize(
    "path", ["../x.png", "a/../../x.png", "/etc/passwd", "..", "a/b/../../../x", "x\0.png", "./../x", "/"]
)
def test_paths_of_a_manifest_stay_inside(path: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.csv").write_text(f"path,label\ngood.png,a\n{path},b\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 3: path .* (leaves the root|has a NUL in it, which no file has)"):
        manifest(root / "a.csv", check_files=False)


def test_names_that_only_look_dangerous_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("path,label\n~/x.png,a\n..x.png,b\na/../y.png,b\n$HOME/z.png,a\n", encoding="utf-8")
    data = manifest(tmp_path / "a.csv", check_files=False)
    paths = [data.train.path(i) for i in range(4)]
    assert [p.relative_to(tmp_path).as_posix() for p in paths] == ["~/x.png", "..x.png", "y.png", "$HOME/z.png"]


def test_a_very_long_line_is_read(tmp_path: Path) -> None:
    size = 5_000_000
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\n" + b"x" * size + b",a\nshort,b\n")
    assert [len(text) for text in read_table(path).columns["text"]] == [size, 5]


@pytest.mark.parametrize("read", [read_review, lambda path: manifest(path, check_files=False)])
def test_a_very_long_line_is_refused_in_few_words(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for content in (b"x" * 5_000_000, b"name," * 200_000):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
            read(path)
        assert len(str(caught.value)) < 2_000


def test_many_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    header = ",".join(f"c{i}" for i in range(20_000))
    path.write_text(f"{header}\n{header}\n")
    assert len(read_table(path).columns) == 20_000
    with pytest.raises(ValueError, match="--label is 'y', and ") as caught:
        open_source(path, SourceOptions(label="y"))
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_csv_says_and_nowhere_else(end: str, tmp_path: Path) -> None:
    rows = ["a,b", 'x,"in\rside\nthe\r\ncell"', "y\u2028z,v\x0bw\x85", "", "last,1"]
    path = tmp_path / "a.csv"
    path.write_bytes(end.join(rows).encode())
    found = read_text_rows(path)
    assert found.raw == [*(row + end for row in rows[:-1]), rows[-1]]
    assert found.cells == [["a", "b"], ["x", "in\rside\nthe\r\ncell"], ["y\u2028z", "v\x0bw\x85"], [], ["last", "1"]]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"x,y\n1,\xff\xfe\n2,b\n", "is not utf-8 (byte 6 is 0xff); save it as UTF-8"),
        (b"x,y\n1,a\n2,\n", "column 'y' has no label in 1 of 2 rows: 1 (from 0)"),
        (b'x,y\n1,"a\n2,b\n', "can't be read (unexpected end of data)"),
        (b"x,y\n1,a,b\n", "has 3 cells and the header has 2"),
        (b"", "has no header"),
    ],
)
def test_broken_tables(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(problem)):
        open_source(path, SourceOptions(label="y"))


def test_nul_bytes_are_letters_like_others(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x,y\n1,a\0\n2,b\n3,a\0\n4,b\n")
    assert open_source(tmp_path / "a.csv", SourceOptions(label="y")).labels == ["a\0", "b", "a\0", "b"]


def test_an_encoding_that_is_none_of_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n")
    with pytest.raises(ValueError, match="hex") as caught:
        read_table(tmp_path / "a.csv", "hex")
    assert str(caught.value) == "--encoding is 'hex', which is none of text; expected one such as latin-1"


def test_labels_that_are_floats(tmp_path: Path) -> None:
    for name, labels, expected in (
        ("whole.npz", [0.0, 1.0, 0.0, 1.0], ["0", "1", "0", "1"]),
        ("half.npz", [0.5, 1.0, 0.5, 1.0], ["0.5", "1.0", "0.5", "1.0"]),
        ("infinite.npz", [np.inf, 1.0, np.inf, 1.0], ["inf", "1.0", "inf", "1.0"]),
    ):
        np.savez(tmp_path / name, X=np.eye(4), y=np.array(labels))
        assert open_source(tmp_path / name, SourceOptions()).labels == expected
    np.savez(tmp_path / "nan.npz", X=np.eye(4), y=np.array([np.nan, 1.0, np.nan, 1.0]))
    with pytest.raises(ValueError, match="has no label in 2 of 4 rows"):
        open_source(tmp_path / "nan.npz", SourceOptions())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_embeddings_that_are_no_numbers(value: float, tmp_path: Path) -> None:
    X = np.eye(4)
    X[2, 1] = value
    np.savez(tmp_path / "a.npz", X=X, y=np.array([0, 1, 0, 1]))
    with pytest.raises(ValueError, match=r"X has NaN or Inf in 1 rows: 2 \(from 0\); expected finite numbers"):
        open_source(tmp_path / "a.npz", SourceOptions())


def test_ten_thousand_classes_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "".join(f"{i},class {i // 3}\n" for i in range(30_000)))
    with pytest.raises(ValueError, match="10,000") as caught:
        open_source(path, SourceOptions(label="y"))
    assert str(caught.value) == (
        f"{path} has 10,000 different labels; expected at most 2,000, as each is compared with each: clean a part of "
        "the classes at a time"
    )


def test_ten_thousand_classes_of_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("path,label\n" + "".join(f"{i}.png,{i}\n" for i in range(10_000)))
    data = manifest(path, check_files=False)
    assert data.num_classes == 10_000
    assert data.train.targets == list(range(10_000))


# what the package brings along

RUNTIME = {"torch", "numpy", "scikit-learn", "matplotlib", "tqdm", "pillow", "safetensors", "pandas"}


def test_runtime_dependencies_stay_few() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {re.split(r"[<>=!~\[; ]", each)[0].lower() for each in project["dependencies"]}
    assert names == RUNTIME, "every new dependency is one more to trust: add it here only with a reason"


def test_everything_that_ci_installs_is_pinned() -> None:
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()]
    pins = [line for line in lines if line]
    assert all(re.fullmatch(r"[a-z0-9._-]+==[\w.+]+", pin) for pin in pins)
    pinned = {pin.partition("==")[0] for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    names = {re.split(r"[<>=!~\[; ]", each)[0].lower() for each in wanted} - {"vri"}
    assert names - pinned == set()
