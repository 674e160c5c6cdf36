"""Driver roots as distributions, driver containers and Google's nodes lay them out, for tests of what containers get.

The libraries are shared objects to whoever reads their headers, and no more: of any machine, made without a compiler.
"""

import os
import stat
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dradriver.host import Host
from dradriver_gpu.cdi.nodes import Numbers, character_device
from dradriver_gpu.inventory import Driver, DriverState
from hosttree import HostTree

X86, X86_64, AARCH64 = 3, 62, 183

VERSION = "580.65.06"
OLDER = "570.86.10"


# --- shared objects


def shared_object(
    soname: str = "", needed: Collection[str] = (), *, machine: int = X86_64, bits: int = 64
) -> bytes:
    """Return a shared object of one segment: headers, dynamic section, strings."""
    strings = b"\0"
    entries = []
    for tag, name in [(1, name) for name in needed] + ([(14, soname)] if soname else []):
        entries.append((tag, len(strings)))
        strings += name.encode() + b"\0"
    wide = bits == 64
    header, segment, entry = (64, 56, 16) if wide else (52, 32, 8)
    dynamic = header + 2 * segment
    base = 0x1000
    table = dynamic + (len(entries) + 2) * entry
    entries += [(5, base + table), (0, 0)]
    size = table + len(strings)
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1, 1]) + bytes(9)
    if wide:
        head = struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, header, 0, 0, header, segment, 2, 0, 0, 0)
        load = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 4096)
        info = struct.pack("<IIQQQQQQ", 2, 6, dynamic, base + dynamic, 0, table - dynamic, table - dynamic, 8)
    else:
        head = struct.pack("<HHIIIIIHHHHHH", 3, machine, 1, 0, header, 0, 0, header, segment, 2, 0, 0, 0)
        load = struct.pack("<8I", 1, 0, base, base, size, size, 5, 4096)
        info = struct.pack("<8I", 2, dynamic, base + dynamic, 0, table - dynamic, table - dynamic, 6, 4)
    body = b"".join(struct.pack("<qQ" if wide else "<iI", *one) for one in entries)
    return ident + head + load + info + body + strings


# --- what is in a driver: library -> SONAME ("" for the name with the version), and what it is linked against


@dataclass(frozen=True, slots=True)
class Content:
    """A library: its SONAME, where it is not the name with the version, what it needs, and where below the others."""

    soname: str = ""
    needed: tuple[str, ...] = ()
    below: str = ""


COMPUTE = {
    "libcuda": Content("libcuda.so.1"),
    "libcudadebugger": Content("libcudadebugger.so.1"),
    "libnvidia-opencl": Content("libnvidia-opencl.so.1"),
    "libnvidia-ptxjitcompiler": Content("libnvidia-ptxjitcompiler.so.1"),
    "libnvidia-nvvm": Content("libnvidia-nvvm.so.4"),
    "libnvidia-gpucomp": Content(),
    "libnvidia-allocator": Content("libnvidia-allocator.so.1"),
}
UTILITY = {"libnvidia-ml": Content("libnvidia-ml.so.1"), "libnvidia-cfg": Content("libnvidia-cfg.so.1")}
VIDEO = {
    "libnvcuvid": Content("libnvcuvid.so.1", ("libcuda.so.1",)),
    "libnvidia-encode": Content("libnvidia-encode.so.1", ("libnvcuvid.so.1",)),
    "libnvidia-opticalflow": Content("libnvidia-opticalflow.so.1"),
    "libvdpau_nvidia": Content("libvdpau_nvidia.so.1", below="vdpau"),
}
GRAPHICS = {
    "libGLX_nvidia": Content(
        "libGLX_nvidia.so.0", ("libnvidia-glcore.so.{version}", "libnvidia-tls.so.{version}")
    ),
    "libEGL_nvidia": Content("libEGL_nvidia.so.0"),
    "libnvidia-glcore": Content(),
    "libnvidia-eglcore": Content(),
    "libnvidia-tls": Content(),
    "libnvidia-rtcore": Content(),
    "libnvoptix": Content("libnvoptix.so.1"),
    "libnvidia-gtk3": Content(),
}
NGX = {"libnvidia-ngx": Content("libnvidia-ngx.so.1")}
ALL = {**COMPUTE, **UTILITY, **VIDEO, **GRAPHICS, **NGX}

PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)


# --- where it is


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a distribution has the driver.

    root         driver root below the host's
    libraries    directory of the libraries below the driver root, links followed
    programs     of the programs, links followed
    links        directories that are links: as on a system whose /bin and /lib are those of /usr
    aliases      directory in which every library has a link by its SONAME (Debian's alternatives)
    """

    name: str
    root: str = "/"
    libraries: str = "usr/lib64"
    programs: str = "usr/bin"
    machine: int = X86_64
    links: tuple[tuple[str, str], ...] = (("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"))
    aliases: str = ""


_MERGED_DEBIAN = (("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"))

UBUNTU = Layout("ubuntu", libraries="usr/lib/x86_64-linux-gnu", links=_MERGED_DEBIAN)
UNMERGED = Layout("unmerged", libraries="usr/lib/x86_64-linux-gnu", links=())
DEBIAN = Layout(
    "debian",
    libraries="usr/lib/x86_64-linux-gnu/nvidia/current",
    programs="usr/lib/nvidia/current",
    links=_MERGED_DEBIAN,
    aliases="usr/lib/x86_64-linux-gnu",
)
FEDORA = Layout("fedora")
CONTAINER = Layout(
    "driver container", root="/run/nvidia/driver", libraries="usr/lib/x86_64-linux-gnu", links=_MERGED_DEBIAN
)
CONTAINER_UBI = Layout("driver container of RHEL", root="/run/nvidia/driver")
GKE = Layout("gke", root="/home/kubernetes/bin/nvidia", libraries="lib64", programs="bin", links=())
ARM = Layout("aarch64", libraries="usr/lib/aarch64-linux-gnu", machine=AARCH64, links=_MERGED_DEBIAN)

LAYOUTS = (UBUNTU, UNMERGED, DEBIAN, FEDORA, CONTAINER, CONTAINER_UBI, GKE, ARM)


class DriverTree:
    """A host with a driver.

    directory   the host's root
    driver      what NVML would say of it
    """

    def __init__(self, directory: Path, layout: Layout = UBUNTU, version: str = VERSION) -> None:
        """Make the directories; no driver is installed yet."""
        self.directory = directory
        self.layout = layout
        self.version = version
        self.host = Host(directory)
        self.tree = HostTree(directory)
        self.root = directory / layout.root.strip("/")
        self.libraries = self.root / layout.libraries
        for path in (layout.libraries, layout.programs):
            (self.root / path).mkdir(parents=True, exist_ok=True)
        for path, target in layout.links:
            (self.root / target).mkdir(parents=True, exist_ok=True)
            (self.root / path).symlink_to(target)

    @property
    def driver(self) -> Driver:
        """The driver as the inventory has it."""
        library = self.libraries / f"libnvidia-ml.so.{self.version}"
        return Driver(
            DriverState.READY,
            self.layout.root,
            version=self.version,
            library=library if library.exists() else None,
        )

    def host_path(self, name: str) -> str:
        """Return where the host has a library."""
        return "/" + str((self.libraries / name).relative_to(self.directory))

    # --- files of the driver

    def install(self, contents: Mapping[str, Content] | None = None, version: str = "") -> "DriverTree":
        """Install libraries, by default compute and utility ones, with the links that ldconfig makes, and programs."""
        version = version or self.version
        for stem, content in ({**COMPUTE, **UTILITY} if contents is None else contents).items():
            self.library(stem, content, version)
        for program in PROGRAMS:
            self.program(program)
        self.firmware(version)
        return self

    def library(
        self, stem: str, content: Content, version: str = "", *, bits: int = 64, directory: str = ""
    ) -> Path:
        """Install one library with its links."""
        version = version or self.version
        name = f"{stem}.so.{version}"
        folder = (self.root / directory if directory else self.libraries) / content.below
        folder.mkdir(parents=True, exist_ok=True)
        needed = [one.format(version=version) for one in content.needed]
        machine = self.layout.machine if bits == 64 else X86
        path = folder / name
        path.write_bytes(shared_object(content.soname or name, needed, machine=machine, bits=bits))
        if content.soname:
            _link(folder / content.soname, name)
        if self.layout.aliases and content.soname and not directory:
            alternative = self.root / "etc/alternatives" / f"glx--{content.soname}"
            _link(alternative, f"/{self.layout.libraries}/{content.soname}")
            _link(self.root / self.layout.aliases / content.soname, f"/etc/alternatives/{alternative.name}")
        return path

    def program(self, name: str, text: str = "") -> Path:
        """Install a program, at Debian's by way of its alternatives."""
        path = self.root / self.layout.programs / name
        self.executable(path, text or f"#!/bin/sh\necho {self.version}\n")
        if self.layout.programs == "usr/lib/nvidia/current":
            _link(self.root / "etc/alternatives" / name, f"/usr/lib/nvidia/current/{name}")
            _link(self.root / "usr/bin" / name, f"/etc/alternatives/{name}")
        return path

    def firmware(self, version: str = "") -> None:
        """Install firmware of the GPUs' processor."""
        for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
            self.write(f"lib/firmware/nvidia/{version or self.version}/{name}", "firmware")

    def write(self, path: str, text: str) -> Path:
        """Write a file below the driver root, links in the way followed."""
        file = Host(self.root).path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    @staticmethod
    def executable(path: Path, text: str) -> None:
        """Write a program."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    # --- the kernel, and device nodes

    def kernel(self, *, uvm: int | None = 510, caps: int | None = 236) -> "DriverTree":
        """Say which majors the kernel serves; None for a module that is not loaded."""
        lines = ["Character devices:", "  1 mem", "195 nvidia", "195 nvidia-modeset", "195 nvidiactl"]
        lines += [f"{uvm} nvidia-uvm"] if uvm is not None else []
        lines += [f"{caps} nvidia-caps"] if caps is not None else []
        self.tree.write("proc/devices", "\n".join([*lines, "", "Block devices:", "259 blkext"]))
        return self

    def nodes(self, gpus: int = 1, *, uvm: int = 510, root: str = "") -> "DriverTree":
        """Make the nodes of the driver and of GPUs, on the host or below `root`."""
        for name, major, minor in (
            ("nvidiactl", 195, 255),
            ("nvidia-modeset", 195, 254),
            ("nvidia-uvm", uvm, 0),
            ("nvidia-uvm-tools", uvm, 1),
            *((f"nvidia{number}", 195, number) for number in range(gpus)),
        ):
            self.node(name, (major, minor), root=root)
        return self

    def node(self, name: str, numbers: Numbers, *, root: str = "") -> Path:
        """Make a node in /dev; a file that `numbers` reads where this process may make none."""
        path = self.directory / root.strip("/") / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*numbers))
        except PermissionError:
            path.write_text("{}:{}".format(*numbers))
        return path

    def capability(
        self, gpu: int, path: str, minor: int, *, major: int = 236, node: bool = True
    ) -> "DriverTree":
        """Add a capability: `gi1` or `gi1/ci0` of a GPU, given by its minor."""
        self.tree.write(
            f"proc/driver/nvidia/capabilities/gpu{gpu}/mig/{path}/access",
            f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1",
        )
        if node:
            self.node(f"nvidia-caps/nvidia-cap{minor}", (major, minor))
        return self

    # --- NVIDIA's hooks

    def hooks(self, commands: Collection[str], path: str = "usr/bin/nvidia-cdi-hook") -> "DriverTree":
        """Install a program that knows these commands on the host, and ldconfig."""
        cases = "".join(f"{command}) exit 0 ;;\n" for command in commands)
        self.executable(self.host.path(path), f'#!/bin/sh\ncase "$1" in\n{cases}esac\nexit 3\n')
        self.executable(self.host.path("sbin/ldconfig"), "#!/bin/sh\n")
        return self


def numbers(path: Path) -> Numbers | None:
    """Read a node, also one that is a file because this process may make no nodes."""
    found = character_device(path)
    if found is None and path.is_file():
        major, _, minor = path.read_text().partition(":")
        return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
    return found


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
