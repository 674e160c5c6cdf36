"""CDI spec files in the directory that the container runtimes watch (/var/run/cdi).

Runtimes read every .json and .yaml file in it at any moment, so a file appears whole or not at all.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Collection
from pathlib import Path

from dradriver_cdi.errors import CDIError
from dradriver_cdi.spec import Spec
from dradriver_cdi.validate import validate

_TEMPORARY_SUFFIX = re.compile(r"\.json\.[0-9a-f]{16}\.tmp\Z")
_LONGEST_FILE_NAME = 255 - len(".0123456789abcdef.tmp")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.json")
_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DRIVER = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_PLAIN_UID = re.compile(r"[a-z0-9-]{1,63}")
_ATTEMPTS = 3
_MAX_BYTES = 16 << 20

# Runtimes read .json files with a YAML parser. Inside quotes it refuses these characters or, the line breaks
# among them, folds them into spaces, unless they are escaped. It also refuses the escaped surrogate pairs
# that ensure_ascii would make, so everything else stays as it is.
_UNSAFE_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def claim_file_prefix(driver: str) -> str:
    """Return what the file names of all claims of `driver` start with, and those of no other driver.

    Raises CDIError if `driver` is no DNS subdomain of at most 63 characters, or holds the label part `-claim`
    where it would blur into the name of another driver's file.
    """
    if len(driver) > 63 or not _DRIVER.fullmatch(driver) or "-claim-" in f"{driver}-":
        raise CDIError(
            "driver",
            driver,
            "must be a lower case DNS subdomain of at most 63 characters without -claim- in it",
        )
    return f"{driver}-claim-"


def claim_file_name(driver: str, uid: str) -> str:
    """Return the file name of a claim's spec; two different pairs of driver and UID never share one.

    A UID that is not 1 to 63 of [a-z0-9-] is replaced by `_` and its SHA-256. Raises CDIError as
    claim_file_prefix does.
    """
    stem = uid
    if not _PLAIN_UID.fullmatch(uid):
        # No plain UID holds an underscore, so none can pass for a hashed one.
        stem = "_" + hashlib.sha256(uid.encode(errors="surrogatepass")).hexdigest()
    return f"{claim_file_prefix(driver)}{stem}.json"


def encode(spec: Spec) -> bytes:
    """Return the content of the file for `spec`: one line of JSON, the same bytes for the same spec."""
    text = json.dumps(spec.to_dict(), ensure_ascii=False) + "\n"
    return _UNSAFE_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


# What all containers of a driver get is brought up to date for each claim, and large where the driver has many files.
@functools.lru_cache(maxsize=16)
def _encoded(spec: Spec) -> bytes:
    """Return the content of the file for a spec that breaks no rule. Raises CDIError."""
    validate(spec)
    return encode(spec)


class Store:
    """The spec files of one directory.

    A file name is one path component of [A-Za-z0-9_.-] that starts with no dot or dash and ends in .json;
    another raises CDIError. Threads may use one store at the same time; files of others are never touched.
    Errors of the file system come as OSError.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Temporary files that are being written now, which a reconcile of another thread leaves alone.
        self._drafts: set[str] = set()

    def write(self, file_name: str, spec: Spec) -> Path:
        """Make `file_name` hold `spec`, durably, and return its path.

        Raises CDIError, before anything is touched, if the spec breaks a rule or its file would be larger than
        16 MiB. Whatever stands in the file's place is replaced, but for a directory, which is an OSError. The
        directory of all is made where it is missing, also when it is wiped meanwhile. On an error the old content
        stays and no other file does. A file that has the content already is left alone, so that runtimes need not
        load it again.
        """
        path = self._path(file_name)
        content = _encoded(spec)
        if len(content) > _MAX_BYTES:
            raise CDIError(file_name, f"{len(content)} bytes", f"must be at most {_MAX_BYTES} bytes")
        if _content(path) == content:
            return path
        for _ in range(_ATTEMPTS - 1):
            # Not found: there is no directory, it was wiped under the temporary file, or a reconcile took that.
            try:
                self._replace(path, content)
            except FileNotFoundError:
                self._make_directory()
            else:
                return path
        self._replace(path, content)
        return path

    def read(self, file_name: str) -> Spec:
        """Return the spec in `file_name`.

        Raises FileNotFoundError if there is none, CDIError if it is no plain file of at most 16 MiB, not valid
        JSON, or not a valid spec.
        """
        content = _read_plain(self._path(file_name))
        try:
            spec = Spec.from_dict(_parse(content))
            validate(spec)
        except CDIError as error:
            raise CDIError(f"{file_name}: {error.field}", error.value, error.allowed) from None
        return spec

    def remove(self, file_name: str) -> bool:
        """Remove `file_name`, durably; return whether it was there."""
        try:
            self._path(file_name).unlink()
        except FileNotFoundError:
            return False
        _sync_directory(self.directory)
        return True

    def names(self, prefix: str) -> list[str]:
        """Return the sorted names of the spec files that start with `prefix`; no directory, no names."""
        return [name for name in self._entries(prefix) if _FILE_NAME.fullmatch(name)]

    def reconcile(self, prefix: str, keep: Collection[str]) -> list[str]:
        """Remove the spec files that start with `prefix` and are not in `keep`; return their names, sorted.

        Temporary files of a writer that was killed go too, and are in the list. Raises CDIError for a prefix
        that no file of ours has, the empty one above all.
        """
        if not _PREFIX.fullmatch(prefix):
            raise CDIError(
                "prefix", prefix, "must be one or more of [A-Za-z0-9_.-] with no dot or dash first"
            )
        removed = []
        for name in self._entries(prefix):
            stale = _FILE_NAME.fullmatch(name) and name not in keep
            left_over = _TEMPORARY_SUFFIX.search(name) and name not in self._drafts
            if stale or left_over:
                with contextlib.suppress(FileNotFoundError):
                    (self.directory / name).unlink()
                    removed.append(name)
        if removed:
            _sync_directory(self.directory)
        return removed

    def _path(self, file_name: str) -> Path:
        if len(file_name) > _LONGEST_FILE_NAME or not _FILE_NAME.fullmatch(file_name):
            raise CDIError(
                "file name",
                file_name,
                f"must be at most {_LONGEST_FILE_NAME} of [A-Za-z0-9_.-], no dot or dash first, .json last",
            )
        return self.directory / file_name

    def _entries(self, prefix: str) -> list[str]:
        try:
            with os.scandir(self.directory) as entries:
                found = [entry for entry in entries if entry.name.startswith(prefix)]
        except FileNotFoundError:
            return []
        return sorted(entry.name for entry in found if not entry.is_dir(follow_symlinks=False))

    def _replace(self, path: Path, content: bytes) -> None:
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        self._drafts.add(temporary.name)
        try:
            _write_synced(temporary, content)
            temporary.rename(path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            if isinstance(error, OSError):
                # The temporary name says nothing to people, and the error of a full disk has no name at all.
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise
        finally:
            self._drafts.discard(temporary.name)
        _sync_directory(self.directory)

    def _make_directory(self) -> None:
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.directory.mkdir()
        except FileExistsError:
            return
        # Whatever the umask is: runtimes that run without root read it too.
        self.directory.chmod(0o755)


def _write_synced(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(descriptor, 0o644)
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    """Make a rename or removal in `directory` last. Some file systems cannot: nothing to be done about it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _content(path: Path) -> bytes | None:
    """Return what the file holds; None if it is missing or no file such as a write would leave."""
    with contextlib.suppress(OSError, CDIError):
        if path.lstat().st_mode == stat.S_IFREG | 0o644:
            return _read_plain(path)
    return None


def _read_plain(path: Path) -> bytes:
    """Return what a plain file holds. Links are not followed; pipes and devices are not waited for."""
    status = path.lstat()
    if stat.S_ISREG(status.st_mode):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            # Another thing may have taken its place since.
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and len(content := file.read(_MAX_BYTES + 1)) <= _MAX_BYTES:
                return content
    raise CDIError(
        path.name, stat.filemode(status.st_mode), f"must be a plain file of at most {_MAX_BYTES} bytes"
    )


def _parse(content: bytes) -> object:
    try:
        return json.loads(content, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        if isinstance(error, CDIError):
            raise
        raise CDIError("(root)", str(error), "must be one JSON value") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise CDIError("(root)", [key for key, _ in pairs], "must not have a key twice in one object")
    return table
