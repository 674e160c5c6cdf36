"""NVIDIA's hooks, which a container runtime calls to make links and the linker's cache in a container.

The program is `nvidia-cdi-hook`, or `nvidia-ctk hook` before 1.17, of the NVIDIA container toolkit on the host; its
commands and arguments are those of cmd/nvidia-cdi-hook there. Before 1.18 it fails for a command that it does not know,
and the container with it: so only what it knows is called.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dradriver_cdi import Hook
from dradriver_gpu.cdi.content import held
from dradriver_gpu.cdi.tree import File, Tree

CREATE_SYMLINKS = "create-symlinks"
UPDATE_LDCACHE = "update-ldcache"
ENABLE_CUDA_COMPAT = "enable-cuda-compat"
DISABLE_DEVICE_NODE_MODIFICATION = "disable-device-node-modification"
UPDATE_APPLICATION_PROFILE = "update-application-profile"

_COMMANDS = (
    CREATE_SYMLINKS,
    UPDATE_LDCACHE,
    ENABLE_CUDA_COMPAT,
    DISABLE_DEVICE_NODE_MODIFICATION,
    UPDATE_APPLICATION_PROFILE,
)

_PROGRAMS = {"nvidia-cdi-hook": (), "nvidia-ctk": ("hook",)}
"""Name of the program -> what comes before the command."""

# Packages, and the toolkit's container, which installs to /usr/local/nvidia on the host.
_DIRECTORIES = ("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit", "usr/sbin", "usr/local/sbin", "bin")

_LDCONFIG = ("sbin/ldconfig", "sbin/ldconfig.real")
"""The host's program that update-ldcache runs in the container."""


@dataclass(frozen=True, slots=True)
class HookProgram:
    """The program as it is on the host.

    path       as a container runtime calls it
    commands   which of the commands it knows
    """

    path: str
    commands: frozenset[str]

    def knows(self, command: str) -> bool:
        """Return whether it has that command."""
        return command in self.commands

    def hook(self, command: str, *arguments: str) -> Hook:
        """Return a hook that runs a command when the container's files are mounted, before it starts."""
        name = self.path.rpartition("/")[2]
        return Hook("createContainer", self.path, (name, *_PROGRAMS[name], command, *arguments))

    def links(self, links: Iterable[tuple[str, str]]) -> Hook:
        """Return a hook that makes symbolic links, given as what they hold and where they are."""
        return self.hook(
            CREATE_SYMLINKS, *(part for target, link in links for part in ("--link", f"{target}::{link}"))
        )


def find_hook_program(tree: Tree) -> HookProgram | None:
    """Return the program below the host's root; None where there is none, or one that cannot do what is needed."""
    if not any(tree.file(path) for path in _LDCONFIG):
        return None
    for name in _PROGRAMS:
        for directory in _DIRECTORIES:
            path = f"{directory}/{name}"
            file = tree.find(path)
            if file is None or not file.is_program or file.status.st_mode & 0o002:
                continue
            commands = _commands(tree, path, file)
            if {CREATE_SYMLINKS, UPDATE_LDCACHE} <= commands:
                return HookProgram(f"/{path}", commands)
    return None


def _commands(tree: Tree, path: str, file: File) -> frozenset[str]:
    """Return the commands that a program knows: they stand in it by name.

    The toolkit's container installs a script, which calls the program that has the same name with `.real`.
    """
    real = tree.file(f"{path}.real")
    return held(file.path, _COMMANDS) | (held(real.path, _COMMANDS) if real else frozenset())
