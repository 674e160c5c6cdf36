"""A container that is given the driver's edits runs CUDA programs and nvidia-smi: they find their libraries.

Given a host with a driver, laid out as some distribution does, and an image that knows nothing of it; when a runtime
makes a container with what every container with a GPU needs; then the dynamic linker in it finds the host's libraries.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

import cdihook
from dradriver_cdi import ContainerEdits, Device, Spec, validate
from dradriver_gpu.cdi import ContainerEditor
from dradriver_gpu.cdi.elf import read_shared_object
from dradriver_gpu.cdi.libraries import MULTIARCH
from dradriver_gpu.inventory import GPU
from drivertree import (
    CONTAINER,
    CONTAINER_UBI,
    DEBIAN,
    FEDORA,
    GKE,
    OLDER,
    UBUNTU,
    UNMERGED,
    VERSION,
    DriverTree,
    Layout,
)
from ocicontainer import OWN, add_program, make_image, run, runtimes, unusable

LAYOUTS = (UBUNTU, UNMERGED, DEBIAN, FEDORA, CONTAINER, CONTAINER_UBI, GKE)

CUDA = 'const char *cuda_version(void) { return "%s"; }\n'
NVML = 'const char *nvml_version(void) { return "%s"; }\n'
PROGRAM = """
#include <stdio.h>
const char *cuda_version(void);
int main(void) { printf("CUDA %s\\n", cuda_version()); return 0; }
"""
SMI = """
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) { fprintf(stderr, "%s\\n", dlerror()); return 1; }
    const char *(*version)(void) = (const char *(*)(void))dlsym(library, "nvml_version");
    printf("NVIDIA-SMI %s\\n", version());
    return 0;
}
"""


def compiled(target: Path, source: str, *arguments: str) -> Path:
    code = target.with_name(f"{target.name}.c")
    target.parent.mkdir(parents=True, exist_ok=True)
    code.write_text(source)
    subprocess.run(
        ["gcc", str(code), "-o", str(target), *arguments], check=True, capture_output=True, timeout=60
    )
    code.unlink()
    return target


def shared(target: Path, source: str, soname: str) -> Path:
    return compiled(target, source, "-shared", "-fPIC", f"-Wl,-soname,{soname}")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a driver, real ones, in two versions, and a program that is linked against it."""
    if reason := unusable():
        pytest.skip(reason)
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    directory = tmp_path_factory.mktemp("driver")
    for version in (VERSION, OLDER, "999.10"):
        shared(directory / f"libcuda.so.{version}", CUDA % version, "libcuda.so.1")
        shared(directory / f"libnvidia-ml.so.{version}", NVML % version, "libnvidia-ml.so.1")
    library = directory / f"libcuda.so.{VERSION}"
    compiled(directory / "cuda-program", PROGRAM, str(library))
    compiled(directory / "nvidia-smi", SMI)
    content = read_shared_object(library)
    if content is None or content.machine not in MULTIARCH:
        pytest.skip("this machine is none that NVIDIA has drivers for")
    return directory


@pytest.fixture(scope="module")
def images(built: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Images with a shell, ldd and a CUDA program, and without anything of a driver."""
    made = {}
    for name in ("merged-usr", "unmerged-usr"):
        made[name] = make_image(tmp_path_factory.mktemp("image") / "root", merged=name == "merged-usr")
        add_program(made[name], built / "cuda-program", "/usr/bin/cuda-program")
    return made


@pytest.fixture(scope="module")
def image(images: dict[str, Path]) -> Path:
    return images["merged-usr"]


def host_with(directory: Path, built: Path, layout: Layout, *, hooks: str = "") -> DriverTree:
    """Return a host with the driver that was built; `hooks` is its program of hooks, if any."""
    tree = DriverTree(directory / "host", layout)
    for stem, soname in (("libcuda", "libcuda.so.1"), ("libnvidia-ml", "libnvidia-ml.so.1")):
        shutil.copy(built / f"{stem}.so.{VERSION}", tree.libraries)
        (tree.libraries / soname).symlink_to(f"{stem}.so.{VERSION}")
    tree.program("nvidia-smi")
    shutil.copy(built / "nvidia-smi", tree.root / layout.programs / "nvidia-smi")
    tree.kernel().nodes(1)
    if hooks:
        tree.hooks(())
        program = tree.host.path("usr/bin/nvidia-cdi-hook")
        if hooks == "stand-in":
            commands = "create-symlinks update-ldcache enable-cuda-compat disable-device-node-modification"
            tree.executable(program, f"{cdihook.SCRIPT}# {commands}\n")
        else:
            shutil.copy(hooks, program)
    return tree


def edits_of(tree: DriverTree) -> ContainerEdits:
    """Return the edits of a container with one GPU, which must be valid CDI."""
    editor = ContainerEditor(tree.host, tree.layout.root, ("compute", "utility"))
    edits = editor.base(tree.driver)
    editor.check(tree.driver)
    validate(Spec("dradriver.io/base", (Device("gpu", edits),)))
    return edits


def hook_programs() -> list[str]:
    real = shutil.which("nvidia-cdi-hook")
    return ["", "stand-in", *([real] if real else [])]


def sees_the_driver(image: Path, tree: DriverTree, runtime: str) -> None:
    edits = edits_of(tree)
    commands = "ldd /usr/bin/cuda-program && cuda-program && nvidia-smi && ls /dev"
    done = run(image, tree.directory, edits, ["/bin/sh", "-c", commands], runtime=runtime)
    assert done.returncode == 0, done.stderr
    assert "libcuda.so.1 => /usr/local/nvidia/lib64/libcuda.so.1" in done.stdout
    assert f"CUDA {VERSION}\nNVIDIA-SMI {VERSION}\n" in done.stdout
    assert {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"} <= set(done.stdout.split())


@pytest.mark.parametrize("hooks", hook_programs(), ids=lambda hooks: Path(hooks).name or "no-hooks")
@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        *((layout, "merged-usr") for layout in LAYOUTS),
        *((layout, "unmerged-usr") for layout in (UBUNTU, FEDORA, GKE)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_programs_find_the_driver(
    tmp_path: Path, built: Path, images: dict[str, Path], layout: Layout, kind: str, hooks: str
) -> None:
    sees_the_driver(images[kind], host_with(tmp_path, built, layout, hooks=hooks), OWN)


@pytest.mark.parametrize("hooks", hook_programs(), ids=lambda hooks: Path(hooks).name or "no-hooks")
@pytest.mark.parametrize("runtime", runtimes()[1:] or ["none"])
def test_programs_find_the_driver_with_a_runtime_of_this_machine(
    tmp_path: Path, built: Path, image: Path, runtime: str, hooks: str
) -> None:
    if runtime == "none":
        pytest.skip("neither runc nor crun is installed")
    plain = run(image, tmp_path, ContainerEdits(), ["/bin/sh", "-c", "exit 0"], runtime=runtime)
    if plain.returncode != 0:
        pytest.skip(f"{runtime} makes no container here: {plain.stderr.strip()}")
    sees_the_driver(image, host_with(tmp_path, built, CONTAINER, hooks=hooks), runtime)


@pytest.mark.parametrize("hooks", hook_programs(), ids=lambda hooks: Path(hooks).name or "no-hooks")
def test_a_driver_library_in_the_image_does_not_get_in_the_way(
    tmp_path: Path, built: Path, image: Path, hooks: str
) -> None:
    content = read_shared_object(built / f"libcuda.so.{VERSION}")
    assert content
    root = tmp_path / "image"
    shutil.copytree(image, root, symlinks=True)
    libraries = root / "usr/lib" / MULTIARCH[content.machine]
    libraries.mkdir(parents=True, exist_ok=True)
    shutil.copy(built / "libcuda.so.999.10", libraries)
    (libraries / "libcuda.so.1").symlink_to("libcuda.so.999.10")
    without = run(root, tmp_path, ContainerEdits(), ["cuda-program"])
    assert without.stdout == "CUDA 999.10\n"
    sees_the_driver(root, host_with(tmp_path, built, UBUNTU, hooks=hooks), OWN)


@pytest.mark.parametrize("hooks", hook_programs(), ids=lambda hooks: Path(hooks).name or "no-hooks")
def test_an_older_driver_that_lies_around_on_the_host_is_not_mixed_in(
    tmp_path: Path, built: Path, image: Path, hooks: str
) -> None:
    tree = host_with(tmp_path, built, UBUNTU, hooks=hooks)
    for stem in ("libcuda", "libnvidia-ml"):
        shutil.copy(built / f"{stem}.so.{OLDER}", tree.libraries)
        elsewhere = tree.root / "usr/lib64"
        shutil.copy(built / f"{stem}.so.{OLDER}", elsewhere)
    sees_the_driver(image, tree, OWN)


def test_what_is_loaded_by_the_plain_name_is_there(tmp_path: Path, built: Path, image: Path) -> None:
    for hooks in ("", "stand-in"):
        tree = host_with(tmp_path / (hooks or "none"), built, UBUNTU, hooks=hooks)
        places = "/usr/local/nvidia/lib64/libcuda.so /usr/local/nvidia/lib64/libcuda.so.1"
        done = run(image, tree.directory, edits_of(tree), ["/bin/sh", "-c", f"cat {places} > /dev/null"])
        assert done.returncode == 0, done.stderr


def test_a_container_with_a_node_missing_is_not_made(tmp_path: Path, built: Path, image: Path) -> None:
    tree = host_with(tmp_path, built, UBUNTU)
    edits = edits_of(tree)
    (tree.directory / "dev/nvidia-uvm").unlink()
    with pytest.raises(FileNotFoundError, match="nvidia-uvm"):
        run(image, tree.directory, edits, ["/bin/sh"])


def test_a_mig_device_brings_its_nodes(tmp_path: Path, built: Path, image: Path) -> None:
    tree = host_with(tmp_path, built, UBUNTU).nodes(2)
    tree.capability(1, "gi3", 30).capability(1, "gi3/ci0", 31).capability(1, "gi4", 39)
    editor = ContainerEditor(tree.host, "/", ("compute", "utility"))
    edits = editor.base(tree.driver) + editor.instance(GPU("0000:41:00.0", minor=1), 3, 0)
    done = run(image, tree.directory, edits, ["/bin/sh", "-c", "cd /dev && ls -d nvidia?* nvidia-caps/*"])
    assert done.stdout.split() == [
        "nvidia-caps",
        "nvidia-caps/nvidia-cap30",
        "nvidia-caps/nvidia-cap31",
        "nvidia-modeset",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia1",
        "nvidiactl",
    ]
