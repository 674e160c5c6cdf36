"""Checks of the side that faces the kubelet: directories, sockets, registration, its own managers of resources."""

import os
import socket
import stat
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from dradriver.documents import read_documents
from dradriver.inspect.files import can_write, is_directory, mount_of, nearest
from dradriver.inspect.result import Check, error, ok, unknown, warning
from dradriver.kubelet import SocketPaths
from dradriver.kubelet.sockets import MAX_PATH_BYTES
from dradriver.model import shown
from dradriver.sim.kubelet import RegisteredPlugin

# What dradriver pins is pinned by these managers too: kind of backend, name, key of the kubelet's configuration,
# state file, and the policy that pins.
_MAX_BYTES = 1 << 20
_MANAGERS = (
    ("cpu", "CPU manager", "cpuManagerPolicy", "cpu_manager_state", "static"),
    ("memory", "memory manager", "memoryManagerPolicy", "memory_manager_state", "Static"),
)


def check_kubelet_root(root: Path, *, own_directory: bool) -> Check:
    """Check that the kubelet's directory is there, and whether a kubelet works in it.

    own_directory   it is below a directory of one's own (`--dir`), where no kubelet is expected
    """
    if not is_directory(root):
        if own_directory:
            return ok("kubelet root", f"{root}: will be made by `dradriver run --dir`")
        return error(
            "kubelet root",
            f"{root}: no such directory",
            "name the kubelet's --root-dir as kubeletRoot; in a container mount it at the same path",
        )
    if own_directory:
        return ok("kubelet root", f"{root}: a directory of one's own, without a kubelet")
    trace = root / "device-plugins" / "kubelet.sock"
    if _answers(trace):
        return ok("kubelet root", f"{root}: a kubelet listens at {trace}")
    return unknown(
        "kubelet root",
        f"{root}: no kubelet listens at {trace}",
        "where Kubernetes is meant to be: see whether the kubelet runs, and with which --root-dir",
    )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except (OSError, ValueError):  # ValueError: longer than an address may be
            return False
    return True


def check_same_path(root: Path, mountinfo: str) -> Check:
    """Check that the kubelet's directory has one path, inside and outside of a container.

    The kubelet dials the path that it is told. A mount tells where its directory is in its file system: that path
    and the one seen here then end alike, whatever is mounted where.
    """
    mount = mount_of(mountinfo, root)
    if mount is None:
        return unknown("same path", f"{root}: /proc/self/mountinfo does not tell")
    if _ends_alike(mount.root, mount.point):
        return ok("same path", f"{root}: mounted from {mount.root} at {mount.point}")
    return error(
        "same path",
        f"{root}: mounted from {mount.root} at {mount.point}",
        f"mount the kubelet's directory at the path that it has on the host, and name that as kubeletRoot: "
        f"the kubelet would look for our sockets below {root}",
    )


def _ends_alike(one: PurePosixPath, other: PurePosixPath) -> bool:
    shorter, longer = sorted((one.parts[1:], other.parts[1:]), key=len)
    return not shorter or longer[-len(shorter) :] == shorter


def check_directories(paths: Collection[SocketPaths], uid: int) -> list[Check]:
    """Check the kubelet's directory of registration sockets, and each driver's own.

    uid   the user that the daemon runs as
    """
    checks = [_writable("plugins_registry", next(iter(paths)).registry)] if paths else []
    return checks + [_check_plugin_directory(path, uid) for path in paths]


def _check_plugin_directory(paths: SocketPaths, uid: int) -> Check:
    name, directory = f"plugin directory of {paths.driver}", paths.plugin_dir
    try:
        status = directory.stat()
    except FileNotFoundError:
        return _writable(name, directory)
    except OSError as problem:
        return error(name, f"{directory}: {problem.strerror}", "run as root")
    mode = stat.S_IMODE(status.st_mode)
    seen = f"{directory}: mode {mode:04o}, user {status.st_uid}"
    if not stat.S_ISDIR(status.st_mode):
        return error(name, f"{directory}: is not a directory", "remove what is there")
    if status.st_uid != uid:
        return error(name, seen, f"give it to user {uid}, or run as user {status.st_uid}")
    if mode != 0o700:
        mend = "gRPC cannot tell who calls: the daemon makes it private when it starts"
        return warning(name, seen, f"{mend}; else chmod 700 {directory}")
    return ok(name, seen)


def _writable(name: str, directory: Path) -> Check:
    place = nearest(directory)
    if not is_directory(place) or not can_write(place):
        return error(
            name, f"{place}: cannot be written", "run as the user whom it belongs to, root on a node"
        )
    return ok(name, f"{directory}: {'can be written' if place == directory else 'will be made'}")


def check_socket_paths(
    drivers: Collection[str], root: Path, instance: str | None
) -> tuple[list[Check], list[SocketPaths]]:
    """Check that socket paths fit into an address; return them with the check."""
    paths = []
    try:
        paths = [SocketPaths.of(driver, root, instance) for driver in drivers]
    except ValueError as problem:
        return [error("socket paths", str(problem), "use a shorter kubeletRoot or driver name")], []
    longest = max((len(os.fsencode(socket)) for path in paths for socket in path.sockets), default=0)
    return [ok("socket paths", f"{longest} bytes at most, {MAX_PATH_BYTES} are allowed")], paths


def check_registration(driver: str, plugins: Collection[RegisteredPlugin], *, active: bool | None) -> Check:
    """Check that a driver's registration socket answers as the kubelet expects.

    plugins   what all registration sockets answered
    active    whether a daemon holds the lock; None where unknown
    """
    name = f"registration of {driver}"
    mine = [one for one in plugins if (one.type, one.name) == ("DRAPlugin", driver)]
    silent = [one for one in plugins if one.error and one.socket.name.startswith(driver)]
    if mine:
        seen = "; ".join(f"{one.socket.name} leads to {one.endpoint}" for one in mine)
        gone = [one for one in mine if not Path(one.endpoint).is_socket()]
        if gone:
            return error(
                name, f"{seen}, where no socket is", "restart dradriver, which makes its sockets anew"
            )
        return ok(name, f"{seen}; {', '.join(mine[0].versions)}")
    if silent:
        seen = "; ".join(f"{one.socket.name}: {shown(one.error, 200)}" for one in silent)
        return error(
            name, seen, "start dradriver: it removes sockets of dead instances; or restart it if it hangs"
        )
    if active:
        return error(
            name,
            "a daemon is active, and has no socket here",
            "see its log; does it use another kubeletRoot?",
        )
    return warning(name, "no socket of it", "start the daemon: dradriver run")


def check_managers(root: Path, kinds: Collection[str]) -> list[Check]:
    """Check that no manager of the kubelet gives out what dradriver gives out.

    root    the kubelet's directory
    kinds   the kinds of backends that are configured
    """
    config = _kubelet_config(root / "config.yaml")
    checks = []
    for kind, manager, key, file, pinning in _MANAGERS:
        if kind not in kinds:
            continue
        policies = {"its state": _state_policy(root / file), "its configuration": config.get(key)}
        told = {where: policy for where, policy in policies.items() if isinstance(policy, str)}
        name = f"kubelet's {manager}"
        if pinning in told.values():
            checks.append(
                error(
                    name,
                    f"policy {pinning}, says {' and '.join(where for where, one in told.items() if one == pinning)}",
                    f"it gives out the same {'CPUs' if kind == 'cpu' else 'memory'} as backend {kind}: set {key} to "
                    f"{'none' if kind == 'cpu' else 'None'}, drain the node, remove {root / file} and restart the "
                    f"kubelet; or leave backend {kind} out of drivers",
                )
            )
        elif told:
            checks.append(ok(name, f"policy {', '.join(dict.fromkeys(shown(one) for one in told.values()))}"))
        else:
            checks.append(
                unknown(
                    name,
                    f"{root / 'config.yaml'} and {root / file} do not tell",
                    f"where a kubelet runs, its policy must not be {pinning}",
                )
            )
    return checks


def _kubelet_config(path: Path) -> Mapping[str, Any]:
    try:
        found = read_documents(path, _MAX_BYTES)
    except (OSError, ValueError):
        return {}
    return found[0] if len(found) == 1 and isinstance(found[0], dict) else {}


def _state_policy(path: Path) -> object:
    """Return the policy in a manager's state file, which is JSON, and so YAML too."""
    return _kubelet_config(path).get("policyName")
