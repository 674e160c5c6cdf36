"""The driver's files are read once, and again when something of them changes."""

import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dradriver.backend import UnavailableError
from dradriver_gpu.cdi import ContainerEditor
from dradriver_gpu.inventory import Driver, DriverState
from drivertree import (
    CONTAINER,
    DEBIAN,
    GKE,
    OLDER,
    UBUNTU,
    UTILITY,
    VERSION,
    Content,
    DriverTree,
    Layout,
    numbers,
)

LIB = "/usr/local/nvidia/lib64"


def editor(tree: DriverTree) -> ContainerEditor:
    return ContainerEditor(tree.host, tree.layout.root, ("compute", "utility"), numbers=numbers)


def paths(own: ContainerEditor, tree: DriverTree) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in own.base(tree.driver).mounts}


def aged(directory: Path) -> None:
    """Let everything be as old as on a host on which nothing was installed just now."""
    hour_ago = time.time() - 3600
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (hour_ago, hour_ago), follow_symlinks=False)


@pytest.mark.parametrize("layout", [UBUNTU, CONTAINER, GKE], ids=lambda layout: layout.name)
def test_nothing_is_read_again_while_nothing_changes(tmp_path: Path, layout: Layout) -> None:
    tree = DriverTree(tmp_path, layout).install().kernel().nodes()
    aged(tmp_path)
    own = editor(tree)
    before = own.base(tree.driver)
    # A library that is overwritten where it lies changes no directory: who reads it again sees that it is none.
    for library in tree.libraries.glob("libcuda*.so.*"):
        library.write_bytes(b"")
    assert own.base(tree.driver) == before
    own.check(tree.driver)
    assert editor(tree).base(tree.driver) != before


def test_what_was_installed_just_now_is_read_again_until_it_has_settled(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    own = editor(tree)
    directory = tree.libraries.stat()
    paths(own, tree)
    tree.library("libnvidia-late", Content())
    os.utime(
        tree.libraries, ns=(directory.st_atime_ns, directory.st_mtime_ns)
    )  # within one tick of the clock
    assert f"{LIB}/libnvidia-late.so.{VERSION}" in paths(own, tree)


def _install(tree: DriverTree) -> None:
    tree.library("libnvidia-late", Content())


def _remove(tree: DriverTree) -> None:
    (tree.libraries / f"libnvidia-opencl.so.{VERSION}").unlink()


def _program(tree: DriverTree) -> None:
    (tree.root / tree.layout.programs / "nvidia-smi").unlink()


def _configure(tree: DriverTree) -> None:
    tree.write("etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1")


def _hook(tree: DriverTree) -> None:
    tree.hooks(("create-symlinks", "update-ldcache"))


def _firmware(tree: DriverTree) -> None:
    tree.write(f"lib/firmware/nvidia/{VERSION}/gsp_gb10x.bin", "")


def _socket(tree: DriverTree) -> None:
    path = tree.directory / "run/nvidia-persistenced/socket"
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        directory = os.open(path.parent, os.O_PATH)
        server.bind(f"/proc/self/fd/{directory}/{path.name}")
        os.close(directory)


@pytest.mark.parametrize("change", [_install, _remove, _program, _configure, _hook, _firmware, _socket])
@pytest.mark.parametrize("layout", [UBUNTU, DEBIAN, CONTAINER, GKE], ids=lambda layout: layout.name)
def test_each_change_is_seen(tmp_path: Path, layout: Layout, change: Callable[[DriverTree], None]) -> None:
    tree = DriverTree(tmp_path, layout).install()
    aged(tmp_path)
    own = editor(tree)
    before = own.base(tree.driver)
    assert own.base(tree.driver) == before
    change(tree)
    after = own.base(tree.driver)
    assert after != before
    assert after == editor(tree).base(tree.driver)


def test_an_alternative_that_is_switched_is_seen(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path, DEBIAN).install()
    other = tmp_path / "usr/lib/nvidia/other/nvidia-smi"
    tree.executable(other, "#!/bin/sh\n")
    aged(tmp_path)
    own = editor(tree)
    assert paths(own, tree)["/usr/bin/nvidia-smi"] == "/usr/lib/nvidia/current/nvidia-smi"
    link = tmp_path / "etc/alternatives/nvidia-smi"
    link.unlink()
    link.symlink_to("/usr/lib/nvidia/other/nvidia-smi")
    assert paths(own, tree)["/usr/bin/nvidia-smi"] == "/usr/lib/nvidia/other/nvidia-smi"


def test_another_driver_in_the_same_place_is_seen(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install(version=OLDER)
    tree.version = OLDER
    own = editor(tree)
    assert paths(own, tree)[f"{LIB}/libcuda.so.1"].endswith(OLDER)
    tree.install(version=VERSION)
    tree.version = VERSION
    mounts = paths(own, tree)
    assert mounts[f"{LIB}/libcuda.so.1"].endswith(VERSION)
    assert not [path for path in mounts.values() if OLDER in path]


def test_a_driver_container_that_comes_later_and_goes_again(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path, CONTAINER).kernel().nodes()
    shutil.rmtree(tree.root)
    own = editor(tree)
    absent = Driver(DriverState.ABSENT, tree.layout.root, reason="libnvidia-ml.so.1 is not there")
    assert not own.base(absent)
    with pytest.raises(UnavailableError, match=r"libnvidia-ml\.so\.1 is not there"):
        own.check(absent)
    with pytest.raises(UnavailableError, match="is not in the driver root"):
        own.check(tree.driver)
    tree = DriverTree(tmp_path, replace(CONTAINER, links=())).install()
    assert f"{LIB}/libcuda.so.1" in paths(own, tree)
    own.check(tree.driver)
    shutil.rmtree(tree.root)
    assert not own.base(tree.driver)
    with pytest.raises(UnavailableError, match="is not in the driver root"):
        own.check(tree.driver)


def test_a_driver_that_is_installed_half_is_whole_later(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install(UTILITY).kernel().nodes()
    aged(tmp_path)
    own = editor(tree)
    own.base(tree.driver)
    with pytest.raises(UnavailableError, match=rf"the driver in '/' is not whole: libcuda\.so\.{VERSION}"):
        own.check(tree.driver)
    tree.install()
    own.base(tree.driver)
    own.check(tree.driver)
