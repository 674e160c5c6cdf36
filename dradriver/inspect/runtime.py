"""Checks of the container runtime's settings: without CDI it does not give containers what was prepared for them.

Facts: containerd, docs/cri/config.md (CDI is off by default in 1.7, on in 2.x, whose configuration has version 3;
imported files win over the importing one); CRI-O, crio.conf(5) and crio.conf.d(5) (CDI is always on).
"""

import posixpath
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dradriver.host import Host
from dradriver.inspect.result import Check, error, ok, unknown, warning

_CONTAINERD = "etc/containerd/config.toml"
_CONTAINERD_PLUGINS = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
_CRIO, _CRIO_DIRECTORY = "etc/crio/crio.conf", "etc/crio/crio.conf.d"
_DEFAULT_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a runtime is told of CDI. None where it is not told."""

    enabled: bool | None
    directories: tuple[str, ...] | None


class _BadConfigError(Exception):
    """A configuration file cannot be understood."""


def check_runtime(host: Host, cdi: Path, *, own_directory: bool) -> list[Check]:
    """Check containerd's or CRI-O's configuration below the host root.

    cdi             the directory that CDI files are written to
    own_directory   it is one of one's own (`--dir`), which no runtime reads
    """
    name = "container runtime"
    if own_directory:
        return [ok(name, f"none reads {cdi}, a directory of one's own")]
    checks = []
    try:
        if host.exists(_CONTAINERD):
            checks.append(_containerd(host, cdi))
        if host.exists(_CRIO) or host.exists(_CRIO_DIRECTORY):
            checks.append(_crio(host, cdi))
    except _BadConfigError as problem:
        checks.append(error(name, str(problem), "mend the file: the runtime cannot read it either"))
    return checks or [
        unknown(
            name,
            f"neither /{_CONTAINERD} nor /{_CRIO} is below {host.root}",
            f"see that CDI is enabled in the runtime, and that it reads {cdi}; in a container mount the host's "
            "/etc/containerd or /etc/crio below the host root",
        )
    ]


def _containerd(host: Host, cdi: Path) -> Check:
    name = "CDI in containerd"
    config = _toml(host, _CONTAINERD)
    setting = _Setting(None, None)
    for table in (config, *_imported(host, config)):
        setting = _merged(setting, table)
    version = config.get("version")
    if setting.enabled is False:
        return error(
            name, f"/{_CONTAINERD}: enable_cdi is false", "set enable_cdi = true and restart containerd"
        )
    if setting.enabled is None and version != 3:
        return warning(
            name,
            f"/{_CONTAINERD}: version {version}, enable_cdi is not set",
            f'containerd 1.7 needs enable_cdi = true in [plugins."{_CONTAINERD_PLUGINS[0]}"]; 2.0 and later do not',
        )
    return _directories(name, f"/{_CONTAINERD}: enabled", setting.directories, cdi)


def _imported(host: Host, config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    imports = config.get("imports")
    for pattern in imports if isinstance(imports, list) else ():
        if not isinstance(pattern, str) or ".." in pattern.split("/") or "\0" in pattern:
            continue
        directory, _, file = posixpath.join("/etc/containerd", pattern).rpartition("/")
        for entry in host.list_dir(directory):
            if fnmatchcase(entry, file):
                yield _toml(host, f"{directory}/{entry}".lstrip("/"))


def _merged(setting: _Setting, config: dict[str, Any]) -> _Setting:
    for plugin in _CONTAINERD_PLUGINS:
        table = _table(config, "plugins", plugin)
        enabled, directories = table.get("enable_cdi"), table.get("cdi_spec_dirs")
        setting = _Setting(
            enabled if isinstance(enabled, bool) else setting.enabled,
            _texts(directories) if isinstance(directories, list) else setting.directories,
        )
    return setting


def _crio(host: Host, cdi: Path) -> Check:
    files = [_CRIO] if host.exists(_CRIO) else []
    files += [
        f"{_CRIO_DIRECTORY}/{name}" for name in host.list_dir(_CRIO_DIRECTORY) if not name.startswith(".")
    ]
    directories = None
    for file in files:
        found = _table(_toml(host, file), "crio", "runtime").get("cdi_spec_dirs")
        directories = _texts(found) if isinstance(found, list) else directories
    return _directories("CDI in CRI-O", "/etc/crio: enabled, as always", directories, cdi)


def _directories(name: str, seen: str, told: tuple[str, ...] | None, cdi: Path) -> Check:
    directories = _DEFAULT_DIRECTORIES if told is None else told
    seen = f"{seen}, reads {', '.join(directories) or 'no directory'}"
    if _real(str(cdi)) in {_real(directory) for directory in directories}:
        return ok(name, seen)
    return error(
        name,
        seen,
        f"add {cdi} to cdi_spec_dirs and restart the runtime, or name one of them as cdi in dradriver",
    )


def _real(directory: str) -> str:
    """Return a directory's name with /var/run as what it has long been, a link to /run."""
    path = posixpath.normpath(directory)
    return path.removeprefix("/var") if path == "/var/run" or path.startswith("/var/run/") else path


def _toml(host: Host, path: str) -> dict[str, Any]:
    text = host.read_text(path)
    if text is None:
        raise _BadConfigError(f"/{path}: cannot be read")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise _BadConfigError(f"/{path}: not valid TOML: {problem}") from None


def _table(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    found: Any = config
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _texts(values: list[Any]) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str))
