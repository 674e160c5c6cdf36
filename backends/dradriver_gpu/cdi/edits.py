"""From the driver's files to what a container gets. Pure.

In a container the driver's libraries have a directory of their own, whatever the host's distribution is and whatever
the image's: `/usr/local/nvidia/lib64`, which NVIDIA's images and Google's nodes know. So nothing of the image is
covered, no other driver's library in the image is taken for the host's, and a search path can lead to the driver's
libraries alone: with a directory of the system in it, it would go before what programs bring along (RUNPATH, ld.so(8)).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dradriver_cdi import ContainerEdits, Hook, Mount
from dradriver_gpu.cdi.files import Placed
from dradriver_gpu.cdi.hook import (
    DISABLE_DEVICE_NODE_MODIFICATION,
    ENABLE_CUDA_COMPAT,
    UPDATE_APPLICATION_PROFILE,
    UPDATE_LDCACHE,
    HookProgram,
)
from dradriver_gpu.cdi.libraries import MULTIARCH, Libraries, Library

LIBRARY_DIRECTORY = "/usr/local/nvidia/lib64"
NARROW_DIRECTORY = "/usr/local/nvidia/lib"
"""Of 32-bit libraries."""

_FILE = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_CHANNEL = ("nosuid", "nodev", "noexec", "rbind", "rprivate")
"""Mount options, as the NVIDIA container toolkit has them. A channel is written to."""

_PLUGINS = {"libvdpau_nvidia": "vdpau/libvdpau_nvidia.so.1", "libnvidia-allocator": "gbm/nvidia-drm_gbm.so"}
"""Libraries that a library of the image loads from below its own directory, by the name there: VDPAU and GBM."""


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """All files of the driver that containers get.

    graphics   whether containers draw with it
    """

    version: str
    libraries: Libraries
    others: tuple[Placed, ...]
    graphics: bool = False


def file_edits(files: DriverFiles, program: HookProgram | None) -> ContainerEdits:
    """Return what gives a container the driver's files.

    With NVIDIA's hooks, the names of libraries are links and the linker's cache tells of them. Without, each library is
    mounted once more under each of its names, and LD_LIBRARY_PATH leads to them: it replaces the image's own, for which
    reason it holds what NVIDIA's images have in theirs.
    """
    libraries = files.libraries
    places = [(LIBRARY_DIRECTORY, one) for one in libraries.wide] + [
        (NARROW_DIRECTORY, one) for one in libraries.narrow
    ]
    mounts = {f"{directory}/{library.name}": _file(library) for directory, library in places}
    for library in libraries.wide:
        mounts |= {path: _file(library) for path in _plugin_paths(library, libraries.machine, files.graphics)}
    # NVIDIA_VISIBLE_DEVICES: keeps NVIDIA's own runtime, where it is the node's, from adding all GPUs to the container.
    env = ["NVIDIA_VISIBLE_DEVICES=void"]
    if libraries.wide:
        env.append(f"NVIDIA_CTK_LIBCUDA_DIR={LIBRARY_DIRECTORY}")
    hooks: tuple[Hook, ...] = ()
    if program:
        hooks = tuple(_hooks(program, files, places))
    elif libraries.wide:
        env.append(f"LD_LIBRARY_PATH={NARROW_DIRECTORY}:{LIBRARY_DIRECTORY}")
        for directory, library in places:
            mounts |= {f"{directory}/{link}": _file(library) for link in library.links}
    for placed in files.others:
        one = mount(placed)
        mounts.setdefault(one.container_path, (one.host_path, one.options))
    return ContainerEdits(
        env=tuple(env),
        mounts=tuple(Mount(source, path, options) for path, (source, options) in sorted(mounts.items())),
        hooks=hooks,
    )


def mount(placed: Placed) -> Mount:
    """Return the mount of a file, read-only, or of a channel."""
    return Mount(placed.file.host_path, placed.path, _CHANNEL if placed.is_channel else _FILE)


def _file(library: Library) -> tuple[str, tuple[str, ...]]:
    return library.file.host_path, _FILE


def _plugin_paths(library: Library, machine: int | None, graphics: bool) -> Iterator[str]:
    """Yield where a library of the image looks for a plugin: by Debian's way, and by Fedora's."""
    plugin = _PLUGINS.get(library.stem)
    if plugin is None or (library.stem == "libnvidia-allocator" and not graphics):
        return
    if machine in MULTIARCH:
        yield f"/usr/lib/{MULTIARCH[machine]}/{plugin}"
    yield f"/usr/lib64/{plugin}"


def _hooks(program: HookProgram, files: DriverFiles, places: Iterable[tuple[str, Library]]) -> Iterator[Hook]:
    """Yield the hooks in the order in which they must run."""
    places = list(places)
    links = [(target, f"{directory}/{link}") for directory, one in places for link, target in _targets(one)]
    if links:
        yield program.links(links)
    if any(library.stem == "libcuda" for _, library in places) and program.knows(ENABLE_CUDA_COMPAT):
        # It lets the image's own, newer libcuda go before the host's, where that works; the cache is made after it.
        yield program.hook(ENABLE_CUDA_COMPAT, f"--host-driver-version={files.version}")
    if places:
        folders = dict.fromkeys(directory for directory, _ in places)
        yield program.hook(UPDATE_LDCACHE, *(part for folder in folders for part in ("--folder", folder)))
    if program.knows(DISABLE_DEVICE_NODE_MODIFICATION):
        yield program.hook(DISABLE_DEVICE_NODE_MODIFICATION)
    if files.graphics and program.knows(UPDATE_APPLICATION_PROFILE):
        yield program.hook(UPDATE_APPLICATION_PROFILE)


def _targets(library: Library) -> Iterator[tuple[str, str]]:
    """Yield each link of a library with what it holds: the plain name leads to the SONAME, and that to the file."""
    soname = library.content.soname
    for link in library.links:
        has_soname = soname in library.links and link == f"{library.stem}.so"
        yield link, soname if has_soname else library.name
