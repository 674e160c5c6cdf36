"""The driver's libraries: which there are, and under which names programs ask for them."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from dradriver_gpu.cdi.elf import AARCH64, ARM, X86, X86_64, SharedObject, read_shared_object
from dradriver_gpu.cdi.groups import LEADING, OWN_VERSION, wants_library
from dradriver_gpu.cdi.tree import File, Tree

MULTIARCH = {X86_64: "x86_64-linux-gnu", AARCH64: "aarch64-linux-gnu"}
"""Debian's names of machines."""

_NARROW = {X86_64: (X86, "i386-linux-gnu"), AARCH64: (ARM, "arm-linux-gnueabihf")}
"""What 64-bit machines run beside their own programs."""

_CURRENT = "nvidia/current"
"""Where Debian keeps the driver that its alternatives point to."""

_LINKED_ALWAYS = ("libcuda", "libnvidia-opticalflow", "libnvidia-vulkan-producer")
"""Libraries that programs load by the plain name, whether a driver comes with that link or not."""

_NAME = re.compile(r"(?P<stem>lib[A-Za-z0-9_+-]+)\.so\.(?P<version>[0-9]+(\.[0-9]+)*)")
_SONAME = re.compile(r"[A-Za-z0-9_+-]+\.so(\.[A-Za-z0-9_.+-]+)?")


@dataclass(frozen=True, slots=True)
class Library:
    """A library of the driver.

    name    of its file, with the version
    stem    the name up to `.so`
    links   the other names under which programs and other libraries ask for it
    """

    name: str
    stem: str
    file: File
    content: SharedObject
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Libraries:
    """The libraries of one driver version, one machine, and one set of capabilities, by name.

    machine   EM_* number; None where there are none
    narrow    those for 32-bit programs
    faults    why a capability is not there
    notes     what was odd, and left out
    """

    machine: int | None = None
    wide: tuple[Library, ...] = ()
    narrow: tuple[Library, ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Found:
    """All that there is: libraries by stem, and what bears the name of one but is none."""

    by_stem: dict[str, Library] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)


def directories(near: str | None = None) -> tuple[str, ...]:
    """Return where 64-bit libraries may be, below a driver root.

    near   the directory of the driver's NVML library: what is beside it belongs to it

    Fedora, SUSE and Google's images have lib64, Debian and Ubuntu directories by machine; a driver root that holds the
    driver alone has no usr.
    """
    names = [near] if near is not None else []
    for base in ("usr/lib64", *(f"usr/lib/{name}" for name in MULTIARCH.values())):
        names += [base, f"{base}/{_CURRENT}", f"{base}/nvidia"]
    names += ["lib64", *(f"lib/{name}" for name in MULTIARCH.values())]
    names += ["usr/lib", "usr/lib/nvidia", "lib", "usr/local/nvidia/lib64", "run/opengl-driver/lib"]
    return tuple(dict.fromkeys(names))


def _narrow_directories(multiarch: str) -> tuple[str, ...]:
    bases = ("usr/lib32", f"usr/lib/{multiarch}", "usr/lib", "lib32", f"lib/{multiarch}", "lib")
    return tuple(name for base in bases for name in (base, f"{base}/{_CURRENT}", f"{base}/nvidia"))


def find_libraries(tree: Tree, version: str, near: str | None, capabilities: Collection[str]) -> Libraries:
    """Return the libraries of a driver version for these capabilities. Of other versions there are none among them.

    near   path of the NVML library below the root of `tree`
    """
    found = _Found()
    beside = near.rpartition("/")[0] if near is not None else None
    machine = _machine(tree, near, version)
    if machine is not None:
        for directory in _distinct(tree, directories(beside)):
            _scan(tree, directory, version, (64, machine), found)
            _scan(tree, f"{directory}/vdpau", version, (64, machine), found)
    faults = [
        found.damaged.get(stem, f"{stem}.so.{version} is not in the driver root")
        for capability, stem in LEADING.items()
        if capability in capabilities and stem not in found.by_stem
    ]
    narrow = _Found()
    if "compat32" in capabilities and machine in _NARROW:
        kind, multiarch = _NARROW[machine]
        for directory in _distinct(tree, _narrow_directories(multiarch)):
            _scan(tree, directory, version, (32, kind), narrow)
    damaged = {**narrow.damaged, **found.damaged}
    return Libraries(
        machine=machine,
        wide=_chosen(found.by_stem, capabilities),
        narrow=_chosen(narrow.by_stem, capabilities),
        faults=tuple(faults),
        notes=tuple(f"{damaged[stem]}: left out" for stem in sorted(damaged.keys() - found.by_stem.keys())),
    )


def _machine(tree: Tree, near: str | None, version: str) -> int | None:
    """Return the machine that the driver is for: that of its NVML library, or of libcuda."""
    places = [near] if near is not None else []
    names = [f"{stem}.so.{version}" for stem in ("libnvidia-ml", "libcuda")]
    places += [f"{directory}/{name}" for directory in directories() for name in names]
    for place in places:
        file = tree.file(place)
        content = read_shared_object(file.path) if file else None
        if content and content.bits == 64:
            return content.machine
    return None


def _distinct(tree: Tree, names: Iterable[str]) -> Iterator[str]:
    """Yield the directories that there are, each once by whatever names it has."""
    seen: set[str] = set()
    for name in names:
        place = tree.directory(name)
        if place is not None and place not in seen:
            seen.add(place)
            yield place


def _scan(tree: Tree, directory: str, version: str, kind: tuple[int, int], found: _Found) -> None:
    """Add the libraries of one kind (bits, machine) in a directory; what was found before goes first."""
    names = frozenset(tree.names(directory))
    ending = f".so.{version}"
    for name in sorted(names):
        if name.endswith(ending) and _NAME.fullmatch(name):
            _add(tree, (directory, names), name, kind, found)
    candidates = [name for name in names if name.startswith("libnvidia-")]
    for stem in OWN_VERSION:
        if stem not in found.by_stem and (other := _own_version(tree, directory, stem, candidates)):
            _add(tree, (directory, names), other, kind, found)


def _own_version(tree: Tree, directory: str, stem: str, names: Iterable[str]) -> str | None:
    """Return the file of a library that has a version of its own: the one in use where there are several."""
    paths = {}
    for name in names:
        file = tree.within(directory, name) if _is_own(name, stem) else None
        if file and _is_own(file.path.name, stem):
            paths[name] = file.path
    if not paths:
        return None
    # The short name is a link to the file that the dynamic linker takes.
    used = paths[min(paths, key=len)]
    return max((name for name, path in paths.items() if path == used), key=len)


def _is_own(name: str, stem: str) -> bool:
    """Whether a name is that of a library with a version of its own; numbers of three digits are those of drivers."""
    match = _NAME.fullmatch(name)
    return match is not None and match["stem"] == stem and len(match["version"].partition(".")[0]) < 3


def _add(
    tree: Tree, place: tuple[str, frozenset[str]], name: str, kind: tuple[int, int], found: _Found
) -> None:
    """Add one library of a directory, given with the names in it."""
    directory, names = place
    stem = name.partition(".so.")[0]
    file = tree.within(directory, name)
    if stem in found.by_stem or file is None:
        return
    content = read_shared_object(file.path)
    if content is None:
        found.damaged.setdefault(stem, f"{file.host_path} is no whole shared object")
    elif (content.bits, content.machine) == kind:
        library = Library(name, stem, file, content)
        found.by_stem[stem] = replace(library, links=tuple(_links(library, names)))


def _links(library: Library, names: frozenset[str]) -> Iterator[str]:
    """Yield the names, beside that of its file, under which a library is asked for."""
    soname = library.content.soname
    if soname != library.name and _SONAME.fullmatch(soname):
        yield soname
    plain = f"{library.stem}.so"
    if plain not in {soname, library.name} and (plain in names or library.stem in _LINKED_ALWAYS):
        yield plain
    if library.stem == "libGLX_nvidia":
        yield "libGLX_indirect.so.0"  # by which GLVND finds it for clients of another X server


def _chosen(by_stem: dict[str, Library], capabilities: Collection[str]) -> tuple[Library, ...]:
    """Return the libraries of the capabilities, and those of the driver that they are linked against."""
    known = {library.content.soname or library.name: library for library in by_stem.values()}
    chosen: dict[str, Library] = {}
    pending = [library for stem, library in by_stem.items() if wants_library(stem, capabilities)]
    while pending:
        library = pending.pop()
        if library.stem not in chosen:
            chosen[library.stem] = library
            pending += [known[name] for name in library.content.needed if name in known]
    return tuple(chosen[stem] for stem in sorted(chosen))
