"""Containers made as an OCI runtime makes them: a root from a few files of this machine, and edits applied to it.

A runtime of this machine (runc, crun) is used where there is one, and always a small one of ours, which does of the
runtime specification what the edits of a device need: mounts, device nodes, hooks of createContainer, environment. It
runs in a mount namespace of its own, as this module's main program.
"""

import ctypes
import ctypes.util
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dradriver.host import Host
from dradriver_cdi import ContainerEdits

OWN = "own"

_OPTIONS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8}
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 32, 4096, 16384, 1 << 18

_MERGED = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


def runtimes() -> list[str]:
    """Return the runtimes that can be used here."""
    return [OWN, *(name for name in ("runc", "crun") if shutil.which(name))]


def unusable() -> str:
    """Return why no container can be made here; empty where it can."""
    if os.geteuid() != 0:
        return "making a container takes root"
    if not shutil.which("unshare"):
        return "unshare is not installed"
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "no mount namespace can be made here"


def make_image(
    root: Path, *, merged: bool, programs: Iterable[str] = ("sh", "bash", "ldd", "cat", "ls")
) -> Path:
    """Make a root with these programs of this machine and what they need.

    merged   whether /bin, /sbin and /lib are links to those of /usr
    """
    for path, target in _MERGED.items():
        (root / target).mkdir(parents=True, exist_ok=True)
        if merged:
            (root / path).symlink_to(target)
        else:
            (root / path).mkdir()
    for path in ("etc", "tmp", "proc", "dev", "usr/local"):
        (root / path).mkdir()
    for program in programs:
        found = shutil.which(program)
        if found is None:
            raise FileNotFoundError(program)
        add_program(root, Path(found), f"/bin/{program}")
    return root


def add_program(root: Path, program: Path, path: str) -> None:
    """Copy a program to a path of the root, and what this machine's dynamic linker finds for it to its own."""
    _copy(program, root, path)
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        needed = next((word for word in line.split() if word.startswith("/")), None)
        if needed:
            _copy(Path(needed), root, needed)


def _copy(source: Path, root: Path, path: str) -> None:
    target = Host(root).path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(source.resolve(), target)


def run(
    image: Path, host: Path, edits: ContainerEdits, command: list[str], *, runtime: str = OWN
) -> subprocess.CompletedProcess[str]:
    """Run a command in a container that is made of a copy of an image and of edits.

    host   the directory that is the host's `/` to the edits
    """
    with tempfile.TemporaryDirectory() as name:
        bundle = Path(name)
        shutil.copytree(image, bundle / "rootfs", symlinks=True)
        (bundle / "config.json").write_text(json.dumps(_configuration(host, edits, command)))
        if runtime == OWN:
            call = ["unshare", "--mount", "--propagation", "private", sys.executable, __file__, name]
        else:
            call = [runtime, "run", "--bundle", name, f"dradriver-test-{os.getpid()}"]
        return subprocess.run(
            call, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL, cwd=name
        )


def _configuration(host: Path, edits: ContainerEdits, command: list[str]) -> dict[str, Any]:
    """Return the runtime's configuration, the edits merged into it as a CDI-aware engine does."""
    environment = dict(
        variable.split("=", 1) for variable in ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", *edits.env)
    )
    mounts = [
        {
            "destination": mount.container_path,
            "source": f"{host}{mount.host_path}",
            "type": "bind",
            "options": list(mount.options),
        }
        for mount in sorted(edits.mounts, key=lambda mount: mount.container_path.count("/"))
    ]
    devices = []
    for node in edits.device_nodes:
        status = Path(f"{host}{node.host_path or node.path}").lstat()
        if not stat.S_ISCHR(status.st_mode):
            raise ValueError(f"{node.path} is no device node on the host")
        numbers = {"major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
        devices.append({"path": node.path, "type": "c", "fileMode": 0o666, **numbers})
    hooks = [
        {"path": f"{host}{hook.path}", "args": list(hook.args), "env": list(hook.env)} for hook in edits.hooks
    ]
    proc = {
        "destination": "/proc",
        "type": "proc",
        "source": "proc",
        "options": ["nosuid", "noexec", "nodev"],
    }
    capabilities = ["CAP_DAC_OVERRIDE"]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": command,
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        },
        "root": {"path": "rootfs"},
        "mounts": [proc, *mounts],
        "hooks": {"createContainer": hooks},
        "linux": {
            "namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "ipc"}],
            "devices": devices,
            "resources": {"devices": [{"allow": True, "access": "rwm"}]},
        },
    }


# --- the small runtime


def _main(bundle: Path) -> None:
    configuration = json.loads((bundle / "config.json").read_text())
    root = bundle / configuration["root"]["path"]
    inside = Host(root)
    _mount(str(root), str(root), _BIND | _RECURSIVE)
    for mount in configuration["mounts"]:
        target = inside.path(mount["destination"])
        if mount["type"] == "proc":
            _mount("/proc", str(target), _BIND | _RECURSIVE)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if Path(mount["source"]).is_dir():
            target.mkdir(exist_ok=True)
        elif not target.exists():
            target.touch()
        flags = sum(_OPTIONS.get(option, 0) for option in mount["options"])
        _mount(mount["source"], str(target), _BIND | _RECURSIVE)
        _mount(None, str(target), _REMOUNT | _BIND | flags)
        _mount(None, str(target), _PRIVATE | _RECURSIVE)
    for device in configuration["linux"]["devices"]:
        node = inside.path(device["path"])
        node.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(node, stat.S_IFCHR | device["fileMode"], os.makedev(device["major"], device["minor"]))
    state = {
        "ociVersion": "1.0.2",
        "id": "test",
        "status": "creating",
        "pid": os.getpid(),
        "bundle": str(bundle),
    }
    for hook in configuration["hooks"]["createContainer"]:
        environment = dict(variable.split("=", 1) for variable in hook["env"])
        subprocess.run(
            hook["args"],
            executable=hook["path"],
            env=environment,
            input=json.dumps(state).encode(),
            check=True,
        )
    process = configuration["process"]
    os.chroot(root)
    os.chdir(process["cwd"])
    environment = dict(variable.split("=", 1) for variable in process["env"])
    os.execvpe(process["args"][0], process["args"], environment)


def _mount(source: str | None, target: str, flags: int) -> None:
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    if libc.mount(source.encode() if source else None, target.encode(), None, flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount of {source} with {flags:#x}: {os.strerror(number)}", target)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
