"""Download with resume and checksum, unpack without leaving the target, and put a finished data set in its place."""

import errno
import gzip
import hashlib
import shutil
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tqdm import tqdm

from vri.data.places import FileCheck

_CHUNK = 1 << 16
_TIMEOUT = 10.0  # seconds; short, so that a closed network is noticed


class DownloadError(OSError):
    """A source could not be reached, or what came from it is not what it should be."""


def download(url: str, target: Path, md5: str | None = None, *, timeout: float = _TIMEOUT) -> None:
    """Fetch `url` into the file `target`, resuming where an earlier try ended.

    Until all is there and has the right checksum, it is kept beside the target as ``<target>.part``.

    Args:
        url: where to fetch from, http or https.
        target: the file to write.
        md5: checksum of the file; if not given, only the length is checked.
        timeout: seconds to wait for an answer.
    """
    part = target.with_name(target.name + ".part")
    resumed = part.exists()
    _fetch(url, part, timeout)
    if resumed and md5 is not None and file_md5(part) != md5:
        part.unlink()  # its beginning may have come from another file
        _fetch(url, part, timeout)
    if md5 is not None and (found := file_md5(part)) != md5:
        part.unlink()
        raise DownloadError(f"{url} has md5 {found}; expected {md5}: the file was changed on the way or at its source")
    part.replace(target)


def file_md5(path: Path) -> str:
    """The md5 of a file, as hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def check_unpacked(path: Path, expected: str) -> str:
    """Raise an error if the unpacked content of a gzip file has a different sha256."""
    with gzip.open(path) as file:
        found = hashlib.sha256(file.read()).hexdigest()
    if found != expected:
        raise ValueError(f"sha256 {found} once unpacked; expected {expected}")
    return ""


def extract(archive: Path, folder: Path) -> None:
    """Unpack a tar file into `folder`; refuse a member that would leave it, or is not a file or folder.

    All members are checked before the first is written.
    """
    try:
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            for member in members:
                _check_member(archive, member)
            tar.extractall(folder, members, filter="data")
    except (tarfile.TarError, EOFError, OverflowError, zlib.error) as error:
        first_line = str(error).partition("\n")[0]
        raise ValueError(
            f"{archive} cannot be unpacked ({first_line}); expected a whole tar file: "
            "it is damaged or cut short, remove it and fetch it again"
        ) from error


@contextmanager
def workspace(root: Path, name: str) -> Iterator[tuple[Path, Path]]:
    """A folder for downloads and one for the data set to be built, on the disk of `root`.

    The first survives a failure, so that downloads can resume; the second never does. After success both are removed.
    """
    existed = root.exists()
    downloads = root / ".partial" / name
    new = downloads / "new"
    try:
        shutil.rmtree(new, ignore_errors=True)  # left over if a process was killed
        new.mkdir(parents=True)
        yield downloads, new
        shutil.rmtree(downloads)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(
            f"the disk of {root} is full; expected room for {name}, its archive and its files: "
            "free some, or choose another folder with --root"
        ) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
        for folder in (downloads, downloads.parent, *([] if existed else [root])):
            with suppress(OSError):  # already gone, or not empty: it holds a partial download
                folder.rmdir()


def demand(checks: Iterable[FileCheck], source: str) -> None:
    """Raise an error if a file that was just fetched is damaged."""
    for check in checks:
        if not check.ok:
            reason = f" ({check.reason})" if check.reason else ""
            raise DownloadError(f"{check.path.name} from {source} is {check.status}{reason}")


def install(new: Path, target: Path) -> None:
    """Move a finished folder or file into place; in an existing folder, files of the same name are replaced."""
    if new.is_dir() and target.is_dir():
        for file in new.iterdir():
            file.replace(target / file.name)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        new.replace(target)


def _check_member(archive: Path, member: tarfile.TarInfo) -> None:
    name, problem = PurePosixPath(member.name), None
    if name.is_absolute() or ".." in name.parts or "\\" in member.name or ":" in member.name:
        problem = "which leaves the folder; expected names inside it"
    elif not member.isfile() and not member.isdir():
        problem = "a link or device; expected files and folders"
    if problem:
        raise ValueError(
            f"{archive} has the member {member.name!r}, {problem}: refused, fetch the archive from its authors"
        )


def _fetch(url: str, part: Path, timeout: float) -> None:
    """Download the rest of `url` into the file `part`."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"User-Agent": "vri", **({"Range": f"bytes={have}-"} if have else {})})
    try:
        response = urlopen(request, timeout=timeout)
    except HTTPError as error:
        error.close()
        if error.code == 416 and have:  # the part is whole already, or longer than the file is now
            if error.headers.get("Content-Range") != f"bytes */{have}":
                part.unlink()
                _fetch(url, part, timeout)
            return
        raise DownloadError(f"{url} answered {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise DownloadError(f"{url} cannot be reached ({getattr(error, 'reason', error)})") from error
    with response:
        if response.status != 206 or not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0  # the server sends the whole file
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        bar = tqdm(
            total=total, initial=have, desc=url.rpartition("/")[2], unit="B", unit_scale=True, disable=None
        )  # only on a terminal
        with open(part, "ab" if have else "wb") as file, bar:
            for chunk in _chunks(url, response):
                file.write(chunk)
                bar.update(len(chunk))
    found = part.stat().st_size
    if total is not None and found != total:
        raise DownloadError(f"{url} ended after {found} of {total} bytes; run the same command again to continue")


def _chunks(url: str, response: HTTPResponse) -> Iterator[bytes]:
    """Read to the end; network errors become a `DownloadError`, disk errors don't."""
    try:
        while chunk := response.read(_CHUNK):
            yield chunk
    except (OSError, HTTPException) as error:
        raise DownloadError(f"{url} broke off ({error}); run the same command again to continue") from error
