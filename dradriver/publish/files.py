"""The publisher without an API server: a directory of ResourceSlice manifests.

`<directory>/<driver>_<kind>-<number>.yaml` is the whole of a slice, written beside and renamed into place. Of the
directory only files of that form, of the pools that were published, are ever touched.
"""

import contextlib
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dradriver.documents import load_documents, read_plain
from dradriver.model import PoolContent
from dradriver.model.text import shown
from dradriver.publish.api import PublishResult
from dradriver.publish.manifest import HEADER, dumped, manifest, spec_of
from dradriver.slices import ApiFeatures, Body, Earlier, Pool, pool_specs, same

_MODE = 0o644
_NUMBERED = r"{}-(?:[0-9]{{3}}|[1-9][0-9]{{3,5}})\.yaml"
_LEFTOVER = r"\.{}-[0-9]{{3,6}}\.yaml\.[0-9a-f]{{16}}\.tmp"
_OURS = re.compile(_NUMBERED.format("(?P<stem>[a-z0-9.-]+_[a-z0-9-]+)"))
_MAX_STEM = 255 - len(".-000000.yaml.0123456789abcdef.tmp")
_MAX_FILE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class _Stamp:
    """Tells whether a file is the one last seen, without reading it."""

    inode: int
    size: int
    mode: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "_Stamp":
        return cls(status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(slots=True)
class _Kept:
    """One pool as it should be, and as its files were last seen.

    specs    by slice number
    seen     slice number -> stamp and content of the file; content None where it is no manifest
    """

    pool: Pool
    specs: tuple[Body, ...] = ()
    seen: dict[int, tuple[_Stamp, object]] = field(default_factory=dict)


class FilePublisher:
    """Publishes into `directory`, which is made when there is something to write. See `Publisher`."""

    def __init__(self, directory: Path, features: ApiFeatures = ApiFeatures()) -> None:  # noqa: B008 - frozen
        """Keep the place; touch nothing yet. `features` are those of the API server that will read the files."""
        self._directory = directory
        self._features = features
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._lock = threading.Lock()

    def publish(self, driver: str, node: str, pool: str, content: PoolContent) -> PublishResult:
        """Make the files of a pool say `content`; the names in the result are file names."""
        named = _checked(driver, node, pool)
        with self._lock:
            kept = self._kept.get((driver, named.kind))
            if kept is None or kept.pool != named:
                kept = _Kept(named)
                earlier = self._earlier(kept)
            else:
                earlier = Earlier(kept.specs)
            wanted = pool_specs(named, content, self._features, earlier)
            kept.specs = wanted.specs
            self._kept[driver, named.kind] = kept
            written, removed = self._reconcile(kept)
        return PublishResult(
            tuple(written),
            tuple(removed),
            wanted.left_out,
            wanted.reductions,
            wanted.warnings,
            offered=wanted.offered,
        )

    def verify(self) -> PublishResult:
        """Restore files that are missing or mean something else, and remove those that should not be.

        Each pool by itself; the first OSError is raised when all have been looked after.
        """
        written: list[str] = []
        removed: list[str] = []
        failed: OSError | None = None
        with self._lock:
            for kept in self._kept.values():
                try:
                    restored, stale = self._reconcile(kept)
                except OSError as error:
                    failed = failed or error
                    continue
                written += restored
                removed += stale
        if failed:
            raise failed
        return PublishResult(tuple(written), tuple(removed))

    def withdraw_others(self, keep: Iterable[tuple[str, str]]) -> PublishResult:
        """Remove the files of other pools than those of (driver, pool) in `keep`; they are known by their header."""
        stems = {f"{driver}_{pool.rpartition('/')[2]}" for driver, pool in keep}
        removed = []
        with self._lock:
            for path in self._entries():
                found = _OURS.fullmatch(path.name)
                if found and found["stem"] not in stems and _has_header(path):
                    _remove(path)
                    removed.append(path.name)
        return PublishResult(removed=tuple(removed))

    def withdraw(self, driver: str, node: str, pool: str) -> PublishResult:
        """Remove the files of a pool, and forget it."""
        named = _checked(driver, node, pool)
        with self._lock:
            self._kept.pop((driver, named.kind), None)
            return PublishResult(removed=tuple(self._reconcile(_Kept(named))[1]))

    def _earlier(self, kept: _Kept) -> Earlier:
        """Return what an earlier process left of a pool, and clear away what it left half done."""
        for path in self._matching(kept.pool, _LEFTOVER):
            _remove(path)
        specs: dict[int, Body] = {}
        for number, path in self._files(kept.pool).items():
            spec = spec_of(self._content(kept, number, path), kept.pool)
            if spec is not None:
                specs[number] = spec
        return Earlier.of(specs)

    def _reconcile(self, kept: _Kept) -> tuple[list[str], list[str]]:
        """Bring the files of a pool to its specs; return the names written and removed."""
        written: list[str] = []
        removed: list[str] = []
        for number, spec in enumerate(kept.specs):
            body = manifest(kept.pool, number, spec)
            path = self._directory / f"{_stem(kept.pool)}-{number:03}.yaml"
            content = self._content(kept, number, path)
            if _means(content, body):
                kept.seen[number] = (kept.seen[number][0], body)
            else:
                self._write(kept, number, path, body)
                written.append(path.name)
        for number, path in self._files(kept.pool).items():
            if number >= len(kept.specs):
                _remove(path)
                kept.seen.pop(number, None)
                removed.append(path.name)
        if written or removed:
            _sync(self._directory)
        return written, removed

    def _files(self, pool: Pool) -> dict[int, Path]:
        """Return the files that are a pool's by name, by slice number."""
        start = len(_stem(pool)) + 1
        return {int(path.stem[start:]): path for path in self._matching(pool, _NUMBERED)}

    def _matching(self, pool: Pool, rest: str) -> list[Path]:
        pattern = re.compile(rest.format(re.escape(_stem(pool))))
        return [path for path in self._entries() if pattern.fullmatch(path.name)]

    def _entries(self) -> list[Path]:
        try:
            return sorted(self._directory.iterdir())
        except FileNotFoundError:
            return []

    def _content(self, kept: _Kept, number: int, path: Path) -> object:
        """Return what a file holds, read only if it is not as last seen; None if it is missing or unreadable."""
        known = kept.seen.pop(number, None)
        try:
            if known is None or known[0] != _Stamp.of(path.lstat()):
                known = _read(path)
        except OSError:
            return None
        kept.seen[number] = known
        return known[1]

    def _write(self, kept: _Kept, number: int, path: Path, body: Body) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        with _naming(path), draft.open("xb") as file:
            try:
                file.write(dumped(body))
                file.flush()
                # Whatever the umask is: other programs read the files.
                os.fchmod(file.fileno(), _MODE)
                os.fsync(file.fileno())
                try:
                    draft.replace(path)
                except IsADirectoryError:
                    _move_aside(path)
                    draft.replace(path)
                # Taken after the rename, which changes it, and through the file, which nobody else can replace.
                kept.seen[number] = (_Stamp.of(os.fstat(file.fileno())), body)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise


def _checked(driver: str, node: str, pool: str) -> Pool:
    named = Pool(driver, node, pool)
    if len(_stem(named)) > _MAX_STEM:
        raise ValueError(
            f"pool name {shown(pool)} makes a file name that is too long: "
            f"driver and last part may have {_MAX_STEM - 1} characters together"
        )
    return named


def _has_header(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(HEADER)) == HEADER.encode()
    except OSError:
        return False


def _stem(pool: Pool) -> str:
    # Neither name can hold the underscore that parts them, a slash, or a dot at its start.
    return f"{pool.driver}_{pool.kind}"


def _means(content: object, body: Body) -> bool:
    return (
        isinstance(content, dict)
        and content.keys() == body.keys()
        and all(content[key] == value for key, value in body.items() if key != "spec")
        and same(body["spec"], content["spec"])
    )


def _read(path: Path) -> tuple[_Stamp, object]:
    """Read a manifest; None for its content where it is none, or not a plain file that all may read."""
    stamp = _Stamp.of(path.lstat())
    try:
        data, status = read_plain(path, _MAX_FILE_BYTES, follow=False)
        documents = load_documents(data)
    except (OSError, ValueError):
        return stamp, None
    readable = stat.S_IMODE(status.st_mode) == _MODE
    return _Stamp.of(status), documents[0] if readable and len(documents) == 1 else None


def _remove(path: Path) -> None:
    """Remove a file; a directory, which may be full, is moved aside."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        _move_aside(path)


def _move_aside(path: Path) -> None:
    with _naming(path):
        path.rename(path.with_name(f".{path.name}.obstacle-{secrets.token_hex(4)}"))


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make an OSError name `path` alone: no name with a random part, and not nothing, as of a full disk."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _sync(directory: Path) -> None:
    with _naming(directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
