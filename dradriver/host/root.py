"""A host as files below a root directory: the running one at `/`, or a recorded one anywhere."""

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from dradriver.model.text import shown

# Far above any file read here; keeps a file that never ends from filling the memory.
MAX_FILE_BYTES = 4 << 20

# As many links as the kernel follows before ELOOP (path_resolution(7)).
_MAX_LINKS = 40

_CHUNK_BYTES = 64 << 10
_HEXADECIMAL = re.compile(r"(?:0[xX])?[0-9a-fA-F]{1,16}")
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class Host:
    """Read-only view of the host whose `/` is the directory `root`.

    Paths are given without the root, as `sys/devices/system/cpu/online`; a leading slash is allowed.
    Symbolic links are followed as if `root` were `/`, so neither an absolute link nor one with many
    `..` leads out of it. Reading never raises for what a file is or holds: what is absent, unreadable or
    not of the expected form is None. Only a path with a `..` or a NUL of its own is an error (ValueError),
    since that is a fault of the caller.
    """

    root: Path = Path("/")

    def path(self, path: str) -> Path:
        """Return the real path of `path` on this machine, links followed inside the root.

        The path need not exist. Raises ValueError for a `..` or NUL, OSError for more than 40 links.
        """
        return Path(self._located(path))

    def resolve(self, path: str) -> str | None:
        """Return `path` with all links followed, without a leading slash; None if there is nothing.

        The result of a PCI device's link names the bridges above it.
        """
        _refuse_escape(path)
        try:
            found = _follow(os.fspath(self.root), path)
        except OSError:
            return None
        return found if Path(self.root, found).exists() else None

    def read_link(self, path: str) -> str | None:
        """Return the target of the link `path` as written; None where there is none. It may dangle."""
        _refuse_escape(path)
        parent, _, name = path.rstrip("/").rpartition("/")
        try:
            return os.readlink(os.path.join(self._located(parent), name))  # noqa: PTH115, PTH118
        except OSError:
            return None

    def link_name(self, path: str) -> str | None:
        """Return the last part of a link's target, which need not exist, as a driver's name; None for no link."""
        target = self.read_link(path)
        return target.rstrip("/").rpartition("/")[2] or None if target else None

    def read_text(self, path: str) -> str | None:
        """Return the text of a file without white space and NULs around it; None if it cannot be read.

        Attributes of sysfs answer ENXIO, EINVAL or EIO where a device has no such value: None as well.
        """
        try:
            descriptor = os.open(self._located(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            data = os.read(descriptor, _CHUNK_BYTES)
            if len(data) >= 4096:  # sysfs gives at most a page at once, so a shorter answer is all of it
                data = _rest(descriptor, data)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return data.decode("utf-8", "replace").strip(" \t\r\n\0")

    def read_int(self, path: str) -> int | None:
        """Return the decimal number in a file; None if the file is absent or holds something else."""
        return parse_int(self.read_text(path))

    def read_hex(self, path: str) -> int | None:
        """Return the hexadecimal number in a file, with or without `0x`; None as `read_int` does."""
        text = self.read_text(path)
        return int(text, 16) if text and _HEXADECIMAL.fullmatch(text) else None

    def list_dir(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory; empty if there is no such directory."""
        try:
            return tuple(sorted(os.listdir(self._located(path))))  # noqa: PTH208
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Return whether `path` exists, a dangling link not counted."""
        try:
            return os.path.exists(self._located(path))  # noqa: PTH110
        except OSError:
            return False

    def boot_id(self) -> str | None:
        """Return the random UUID of this boot (random(4)); None if the kernel does not tell."""
        return self.read_text("proc/sys/kernel/random/boot_id") or None

    def _located(self, path: str) -> str:
        """Return the path to open. Strings and os.path: thousands of these are made within a start."""
        _refuse_escape(path)
        root = os.fspath(self.root)
        if root == "/":
            return "/" + path.lstrip("/")
        return f"{root}/{_follow(root, path)}"


def parse_int(text: str | None) -> int | None:
    """Return the decimal number that is all of `text`; None for anything else."""
    if text is None or not _INTEGER.fullmatch(text):
        return None
    return int(text)


def _refuse_escape(path: str) -> None:
    if "\0" in path or (".." in path and ".." in path.split("/")):
        raise ValueError(f"path: {shown(path)}: a path on the host has no '..' and no NUL")


def _rest(descriptor: int, data: bytes) -> bytes:
    chunks = [data]
    size = len(data)
    while size < MAX_FILE_BYTES and (chunk := os.read(descriptor, _CHUNK_BYTES)):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def _follow(root: str, path: str) -> str:
    """Return `path` below `root` with its links followed as chroot(2) would: `..` stops at the root."""
    pending = path.split("/")[::-1]
    done: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            del done[-1:]
            continue
        try:
            target = os.readlink("/".join((root, *done, part)))  # noqa: PTH115
        except OSError:
            done.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            done.clear()
        pending.extend(target.split("/")[::-1])
    return "/".join(done)
