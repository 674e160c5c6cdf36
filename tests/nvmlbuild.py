"""Builds the stub of the NVIDIA driver's library with gcc, whole or without the functions that a driver lacks.

What is built is kept in the repository's .pytest_cache, by content, for all runs and test processes.
"""

import contextlib
import functools
import hashlib
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path

from nvmlfacts import branch_of

SOURCES = Path(__file__).parent / "nvml_stub"
CACHE = Path(__file__).parents[1] / ".pytest_cache" / "nvml_stub"
LIBRARY = "libnvidia-ml.so.1"

_FLAGS = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror",
)
_FUNCTION = re.compile(
    r"^[A-Z_]+\((\d{3})(?:,\s*|\)\s*(?:nvmlReturn_t |const char \*))(nvml\w+)", re.MULTILINE
)


@functools.cache
def functions() -> dict[str, int]:
    """Return every function of the library with the driver branch that brought it."""
    sources = "\n".join(source.read_text() for source in sorted(SOURCES.glob("*.c")))
    return {name: int(branch) for branch, name in _FUNCTION.findall(sources)}


def missing_in(driver: str) -> frozenset[str]:
    """Return the functions that a driver does not have yet."""
    return frozenset(name for name, since in functions().items() if since > branch_of(driver))


def build(missing: Collection[str] = ()) -> Path:
    """Return a library without these functions, built if it was not; a look-up of them fails as with an old driver."""
    if unknown := set(missing) - set(functions()):
        raise ValueError(f"not functions of the stub: {', '.join(sorted(unknown))}")
    objects = _built_objects()
    exported = sorted(set(functions()) - set(missing))
    script = f"{{ global: {' '.join(f'{name};' for name in exported)} local: *; }};\n"
    library = objects / f"{hashlib.sha256(script.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=objects) as scratch:
            exports = Path(scratch, "exports")
            exports.write_text(script)
            made = Path(scratch, LIBRARY)
            linked = ("-shared", f"-Wl,-soname,{LIBRARY}", f"-Wl,--version-script={exports}", "-pthread")
            _gcc(*linked, "-o", str(made), *map(str, sorted(objects.glob("*.o"))))
            made.rename(library)
    return library


@functools.cache
def _built_objects() -> Path:
    """Return the directory with the compiled sources, named by what is in them; another process may build them too."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    content = b"".join(source.name.encode() + source.read_bytes() for source in sources)
    digest = hashlib.sha256(content + " ".join((platform.machine(), *_FLAGS)).encode()).hexdigest()
    objects = CACHE / digest[:16]
    if not objects.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=CACHE))
        for source in sources:
            if source.suffix == ".c":
                _gcc(*_FLAGS, "-c", str(source), "-o", str(scratch / f"{source.stem}.o"))
        with contextlib.suppress(OSError):
            scratch.rename(objects)
        shutil.rmtree(scratch, ignore_errors=True)
    return objects


def _gcc(*arguments: str) -> None:
    done = subprocess.run(["gcc", *arguments], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"gcc {' '.join(arguments)}:\n{done.stderr}")
