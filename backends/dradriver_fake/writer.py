"""Writing files and links below a directory, many at a time."""

import os
from pathlib import Path


class Tree:
    """The files below `root`; paths are given without it. Directories are made as they are needed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: set[str] = set()

    def file(self, path: str, text: object) -> None:
        """Write a file with the newline that the kernel adds."""
        self._parent(path)
        descriptor = os.open(
            f"{self.root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
        )
        try:
            os.write(descriptor, f"{text}\n".encode())
        finally:
            os.close(descriptor)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link at `path` to the file or directory `target` of this tree, relative as in sysfs."""
        self._parent(path)
        relative = os.path.relpath(target, path.rpartition("/")[0])
        (self.root / path).symlink_to(relative)

    def directory(self, path: str) -> None:
        """Make a directory."""
        self._parent(f"{path}/.")

    def _parent(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent not in self._made:
            (self.root / parent).mkdir(parents=True, exist_ok=True)
            self._made.add(parent)
