"""Which libraries a container gets, under which names, from each layout of a driver root."""

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from dradriver.backend import UnavailableError
from dradriver_cdi import ContainerEdits, Device, Spec, validate
from dradriver_gpu.cdi import ContainerEditor
from drivertree import (
    ALL,
    COMPUTE,
    GKE,
    GRAPHICS,
    LAYOUTS,
    NGX,
    OLDER,
    UBUNTU,
    UTILITY,
    VERSION,
    VIDEO,
    Content,
    DriverTree,
    Layout,
    numbers,
    shared_object,
)

LIB = "/usr/local/nvidia/lib64"
DEFAULT = ("compute", "utility")


def editor(tree: DriverTree, capabilities: Collection[str] = DEFAULT) -> ContainerEditor:
    return ContainerEditor(tree.host, tree.layout.root, capabilities, numbers=numbers)


def base(tree: DriverTree, capabilities: Collection[str] = DEFAULT) -> ContainerEdits:
    """Return what every container gets, which must be valid CDI."""
    edits = editor(tree, capabilities).base(tree.driver)
    validate(Spec("dradriver.io/base", (Device("gpu", edits),)))
    return edits


def mounted(tree: DriverTree, capabilities: Collection[str] = DEFAULT) -> dict[str, str]:
    """Return the mounts: path in the container -> path on the host."""
    edits = base(tree, capabilities)
    paths = [mount.container_path for mount in edits.mounts]
    assert len(paths) == len(set(paths))
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def libraries(tree: DriverTree, capabilities: Collection[str] = DEFAULT) -> set[str]:
    """Return the libraries that are given out, by the part of the name before `.so`."""
    return {
        path.removeprefix(f"{LIB}/").partition(".so")[0]
        for path in mounted(tree, capabilities)
        if path.startswith(f"{LIB}/")
    }


def complaint(tree: DriverTree, capabilities: Collection[str] = DEFAULT) -> str:
    tree.kernel().nodes()
    with pytest.raises(UnavailableError) as error:
        editor(tree, capabilities).check(tree.driver)
    return str(error.value)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_every_layout_gives_the_same_container(tmp_path: Path, layout: Layout) -> None:
    tree = DriverTree(tmp_path, layout).install().kernel().nodes()
    mounts = mounted(tree)
    for path, name in {
        f"{LIB}/libcuda.so.{VERSION}": f"libcuda.so.{VERSION}",
        f"{LIB}/libcuda.so.1": f"libcuda.so.{VERSION}",
        f"{LIB}/libcuda.so": f"libcuda.so.{VERSION}",
        f"{LIB}/libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
        f"{LIB}/libnvidia-nvvm.so.4": f"libnvidia-nvvm.so.{VERSION}",
        f"{LIB}/libnvidia-gpucomp.so.{VERSION}": f"libnvidia-gpucomp.so.{VERSION}",
    }.items():
        assert mounts[path] == tree.host_path(name)
    assert mounts["/usr/bin/nvidia-smi"] == f"{layout.root.rstrip('/')}/{layout.programs}/nvidia-smi"
    assert f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin" in mounts
    assert libraries(tree) == COMPUTE.keys() | UTILITY.keys()
    for host_path in mounts.values():
        assert (tmp_path / host_path.lstrip("/")).is_file()
        assert not (tmp_path / host_path.lstrip("/")).is_symlink()
    editor(tree).check(tree.driver)


def test_without_hooks_a_search_path_leads_to_the_driver_alone(tmp_path: Path) -> None:
    edits = base(DriverTree(tmp_path).install())
    assert edits.hooks == ()
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64" in edits.env
    assert "NVIDIA_VISIBLE_DEVICES=void" in edits.env


def test_mounts_are_read_only_and_make_nothing_else_of_the_host_usable(tmp_path: Path) -> None:
    for mount in base(DriverTree(tmp_path).install()).mounts:
        assert {"ro", "nosuid", "nodev"} <= set(mount.options)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (("compute",), COMPUTE),
        (("utility",), UTILITY),
        (("compute", "utility", "video"), {**COMPUTE, **UTILITY, **VIDEO}),
        (("compute", "ngx"), {**COMPUTE, **NGX}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_a_capability_brings_its_libraries(
    tmp_path: Path, capabilities: tuple[str, ...], expected: dict[str, Content]
) -> None:
    assert libraries(DriverTree(tmp_path).install(ALL), capabilities) == set(expected)


def test_graphics_brings_what_it_shares_with_compute_and_leaves_out_what_only_the_host_uses(
    tmp_path: Path,
) -> None:
    found = libraries(DriverTree(tmp_path).install(ALL), ("graphics",))
    shared = {"libnvidia-gpucomp", "libnvidia-allocator", "libGLX_indirect"}
    assert found == (GRAPHICS.keys() - {"libnvidia-gtk3"}) | shared


def test_what_a_library_is_linked_against_comes_along(tmp_path: Path) -> None:
    found = libraries(DriverTree(tmp_path).install(ALL), ("video",))
    assert found == VIDEO.keys() | {"libcuda"}


def test_a_library_that_is_not_known_yet_is_given_out(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    tree.library("libnvidia-newcompiler", Content("libnvidia-newcompiler.so.1"))
    assert "libnvidia-newcompiler" in libraries(tree, ("utility",))


def test_plain_names_are_there_where_the_host_has_them(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    assert f"{LIB}/libnvidia-ml.so" not in mounted(tree)
    (tree.libraries / "libnvidia-ml.so").symlink_to("libnvidia-ml.so.1")
    assert mounted(tree)[f"{LIB}/libnvidia-ml.so"] == tree.host_path(f"libnvidia-ml.so.{VERSION}")


def test_plugins_are_where_the_libraries_of_images_look_for_them(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install(ALL)
    mounts = mounted(tree, ("compute", "video", "graphics"))
    for base_directory in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"):
        vdpau = mounts[f"{base_directory}/vdpau/libvdpau_nvidia.so.1"]
        assert vdpau.endswith(f"/vdpau/libvdpau_nvidia.so.{VERSION}")
        gbm = mounts[f"{base_directory}/gbm/nvidia-drm_gbm.so"]
        assert gbm.endswith(f"/libnvidia-allocator.so.{VERSION}")
    assert not any("/gbm/" in path for path in mounted(tree))


def test_programs_of_32_bits_get_theirs_apart(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    tree.library("libcuda", Content("libcuda.so.1"), bits=32, directory="usr/lib/i386-linux-gnu")
    assert not any(path.startswith("/usr/local/nvidia/lib/") for path in mounted(tree))
    mounts = mounted(tree, (*DEFAULT, "compat32"))
    narrow = f"/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}"
    assert mounts["/usr/local/nvidia/lib/libcuda.so.1"] == narrow
    assert mounts[f"{LIB}/libcuda.so.1"] == tree.host_path(f"libcuda.so.{VERSION}")


@pytest.mark.parametrize("layout", [UBUNTU, GKE], ids=lambda layout: layout.name)
def test_of_two_versions_only_the_one_that_runs_is_given_out(tmp_path: Path, layout: Layout) -> None:
    tree = DriverTree(tmp_path, layout).install(ALL)
    for stem, content in ALL.items():
        tree.library(stem, content, OLDER)  # its links now lead to the older ones
    tree.library("libnvidia-fatbinaryloader", Content(), OLDER)
    tree.firmware(OLDER)
    mounts = mounted(tree, ("compute", "utility", "video", "graphics", "ngx"))
    assert not [path for path in (*mounts, *mounts.values()) if OLDER in path]
    assert mounts[f"{LIB}/libcuda.so.1"].endswith(VERSION)


def test_an_older_copy_of_the_same_version_elsewhere_does_not_go_before_that_beside_nvml(
    tmp_path: Path,
) -> None:
    tree = DriverTree(tmp_path).install()
    (tmp_path / "usr/lib64").mkdir(exist_ok=True)
    for stem, content in COMPUTE.items():
        tree.library(stem, content, directory="usr/lib64")
    assert mounted(tree)[f"{LIB}/libcuda.so.1"] == tree.host_path(f"libcuda.so.{VERSION}")


def test_libraries_with_a_version_of_their_own_are_the_ones_in_use(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install(ALL)
    for version in ("1.1.1", "1.1.2", "1.1.3"):
        tree.library("libnvidia-egl-gbm", Content("libnvidia-egl-gbm.so.1"), version)
    used = tree.libraries / "libnvidia-egl-gbm.so.1"
    used.unlink()
    used.symlink_to("libnvidia-egl-gbm.so.1.1.2")
    mounts = mounted(tree, ("graphics",))
    assert mounts[f"{LIB}/libnvidia-egl-gbm.so.1"] == tree.host_path("libnvidia-egl-gbm.so.1.1.2")
    assert not [path for path in mounts.values() if path.endswith(("gbm.so.1.1.1", "gbm.so.1.1.3"))]


def test_a_library_of_its_own_version_that_leads_to_another_driver_is_left_out(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install({**UTILITY, "libcuda": Content("libcuda.so.1")})
    tree.library("libnvidia-nvvm", Content("libnvidia-nvvm.so.4"), OLDER)
    assert "libnvidia-nvvm" not in libraries(tree)


def test_a_library_of_another_machine_is_left_out(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    strange = tree.libraries / f"libnvidia-opencl.so.{VERSION}"
    strange.write_bytes(shared_object("libnvidia-opencl.so.1", machine=183))
    assert "libnvidia-opencl" not in libraries(tree)


# --- not whole


def test_a_driver_without_cuda_says_so(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install(UTILITY)
    assert f"libcuda.so.{VERSION} is not in the driver root" in complaint(tree)
    editor(tree, ("utility",)).check(tree.driver)


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", shared_object("libcuda.so.1")[:-30]], ids=["empty", "head", "half"]
)
def test_a_library_that_was_not_copied_whole_says_so(tmp_path: Path, data: bytes) -> None:
    tree = DriverTree(tmp_path).install()
    (tree.libraries / f"libcuda.so.{VERSION}").write_bytes(data)
    said = complaint(tree)
    assert f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION} is no whole shared object" in said
    assert not editor(tree).base(tree.driver)


def test_another_library_that_is_not_whole_is_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = DriverTree(tmp_path).install().kernel().nodes()
    (tree.libraries / f"libnvidia-opencl.so.{VERSION}").write_bytes(b"")
    own = editor(tree)
    own.check(tree.driver)
    told = f"/usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.{VERSION} is no whole shared object"
    assert [told in message for message in caplog.messages] == [True]
    (tree.libraries / "libanother.so").touch()
    assert own.base(tree.driver)
    assert len(caplog.messages) == 1, "read anew, and told once"
    assert "libnvidia-opencl" not in libraries(tree)
    assert [note for note in own.notes(tree.driver) if "libnvidia-opencl" in note]


def test_a_driver_root_that_is_not_there_says_so(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path, GKE)
    assert f"libcuda.so.{VERSION} is not in the driver root" in complaint(tree)
    tree.root.rename(tmp_path / "gone")
    assert f"libcuda.so.{VERSION} is not in the driver root" in complaint(tree)
    assert not editor(tree).base(tree.driver)


# --- hostile


@pytest.mark.parametrize(
    "target", ["/etc/secret", "../../../../../../../etc/secret", "../../../../etc/secret"]
)
def test_links_do_not_lead_out_of_the_driver_root(tmp_path: Path, target: str) -> None:
    tree = DriverTree(tmp_path, GKE).install()
    secret = tmp_path / "etc/secret"
    secret.parent.mkdir()
    secret.write_bytes(shared_object("libnvidia-opencl.so.1"))
    secret.chmod(0o755)
    for path in (tree.libraries / f"libnvidia-opencl.so.{VERSION}", tree.root / "bin/nvidia-smi"):
        path.unlink()
        path.symlink_to(target)
    mounts = mounted(tree)
    assert f"{LIB}/libcuda.so.1" in mounts
    assert "/etc/secret" not in mounts.values()
    assert f"{LIB}/libnvidia-opencl.so.1" not in mounts
    assert "/usr/bin/nvidia-smi" not in mounts


def test_absolute_links_are_those_of_the_driver_root(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path, GKE).install()
    library = tree.libraries / f"libcuda.so.{VERSION}"
    (tree.root / "real").mkdir()
    library.rename(tree.root / "real/cuda")
    library.symlink_to("/real/cuda")
    assert mounted(tree)[f"{LIB}/libcuda.so.1"] == "/home/kubernetes/bin/nvidia/real/cuda"


def test_a_driver_root_that_is_a_link_is_followed_on_the_host(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path, GKE).install()
    tree.root.rename(tmp_path / "opt-nvidia")
    tree.root.symlink_to("/opt-nvidia")
    assert mounted(tree)[f"{LIB}/libcuda.so.1"] == f"/opt-nvidia/lib64/libcuda.so.{VERSION}"


def test_pipes_directories_and_loops_in_place_of_libraries_hold_nothing_up(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install({**UTILITY, "libcuda": COMPUTE["libcuda"]})
    os.mkfifo(tree.libraries / f"libnvidia-ptxjitcompiler.so.{VERSION}")
    (tree.libraries / f"libnvidia-opencl.so.{VERSION}").mkdir()
    (tree.libraries / f"libnvidia-nvvm.so.{VERSION}").symlink_to(f"libnvidia-nvvm.so.{VERSION}")
    (tmp_path / "usr/bin/nvidia-debugdump").unlink()
    (tmp_path / "usr/bin/nvidia-debugdump").mkdir()
    assert libraries(tree) == {*UTILITY, "libcuda"}
    assert "/usr/bin/nvidia-debugdump" not in mounted(tree)


@pytest.mark.parametrize(
    "soname", ["../../../etc/passwd.so", "a/b.so.1", "lib\nx.so", "x", "libcuda.so.1::/etc/x"]
)
def test_a_name_in_a_library_leads_nowhere_else(tmp_path: Path, soname: str) -> None:
    tree = DriverTree(tmp_path).install()
    (tree.libraries / f"libnvidia-opencl.so.{VERSION}").write_bytes(shared_object(soname))
    mounts = mounted(tree)
    assert [path for path in mounts if "opencl" in path] == [f"{LIB}/libnvidia-opencl.so.{VERSION}"]
    assert not any(part in path for path in mounts for part in ("..", "passwd", "\n", "::"))


@pytest.mark.parametrize("version", ["", "*", "../..", "580", "580.65.06/..", "580.65.06\n"])
def test_what_is_no_version_is_no_part_of_a_path(tmp_path: Path, version: str) -> None:
    tree = DriverTree(tmp_path).install()
    tree.version = version
    assert not editor(tree).base(tree.driver)
    assert "is not the version of a driver" in complaint(tree)


def test_names_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    odd = os.fsdecode(b"odd-\xff")
    library = tree.libraries / f"libnvidia-opencl.so.{VERSION}"
    library.rename(tree.libraries / odd)
    library.symlink_to(odd)
    assert libraries(tree) == COMPUTE.keys() - {"libnvidia-opencl"} | UTILITY.keys()
