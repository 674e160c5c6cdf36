"""Locks on files, by flock(2): each ends with the process that holds it, however that ends.

The file may be removed or replaced under a lock, which then locks out nobody: a lock is held only while its file is the
one at the path.
"""

import fcntl
import os
from pathlib import Path


class FileLock:
    """The lock on one path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def try_acquire(self, *, create: bool = True) -> bool:
        """Take the lock if nobody has it; return whether it is held now.

        Raises FileNotFoundError where there is no file and none is to be made, OSError where it cannot be opened.
        """
        if self.held():
            return True
        self._close()
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        while True:
            fd = os.open(self.path, flags, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return False
            except BaseException:
                os.close(fd)
                raise
            self._fd = fd
            if self.held():
                return True
            # The last holder removed the file between the two calls: a lock on it guards nothing.
            self._close()

    def held(self) -> bool:
        """Return whether the lock is held, on the file that others find."""
        if self._fd is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat(follow_symlinks=False))
        except OSError:
            return False

    def release(self, *, remove: bool = False) -> None:
        """Let go; remove the file first where that is asked and it is still ours."""
        if remove and self.held():
            self.path.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
