"""Device nodes: those that must be there, those of MIG devices, and those that are no longer what they say."""

from pathlib import Path

import pytest

from dradriver.backend import TransientError
from dradriver_cdi import DeviceNode
from dradriver_gpu.cdi import ContainerEditor, MissingNodeError
from dradriver_gpu.inventory import GPU
from drivertree import CONTAINER, GKE, UBUNTU, DriverTree, Layout, numbers

GPU3 = GPU("0000:41:00.0", minor=3)


def host(directory: Path, layout: Layout = UBUNTU) -> DriverTree:
    return DriverTree(directory, layout).install().kernel()


def editor(tree: DriverTree) -> ContainerEditor:
    return ContainerEditor(tree.host, tree.layout.root, ("compute", "utility"), numbers=numbers)


def prepare(tree: DriverTree) -> None:
    own = editor(tree)
    own.check(tree.driver)
    own.gpu(GPU3)


def missing(tree: DriverTree) -> str:
    """Return why a container with GPU 3 cannot be made."""
    with pytest.raises(MissingNodeError) as error:
        prepare(tree)
    assert error.value.node in str(error.value)
    assert isinstance(error.value, TransientError)
    return str(error.value)


def test_a_gpu_is_given_out_by_its_minor_number(tmp_path: Path) -> None:
    tree = host(tmp_path).nodes(8)
    own = editor(tree)
    own.check(tree.driver)
    assert own.gpu(GPU3).device_nodes == (DeviceNode("/dev/nvidia3", permissions="rw"),)
    assert [node.path for node in own.base(tree.driver).device_nodes] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]


@pytest.mark.parametrize("name", ["nvidiactl", "nvidia-uvm", "nvidia3"])
def test_a_node_that_is_missing_is_named_and_no_container_starts_without(tmp_path: Path, name: str) -> None:
    tree = host(tmp_path).nodes(8)
    (tmp_path / "dev" / name).unlink()
    assert f"/dev/{name} is missing on the host; nvidia-modprobe makes it" in missing(tree)
    required = {node.path for node in editor(tree).base(tree.driver).device_nodes}
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm"} <= required


@pytest.mark.parametrize("name", ["nvidia-uvm-tools", "nvidia-modeset"])
def test_others_are_given_out_where_they_are(tmp_path: Path, name: str) -> None:
    tree = host(tmp_path).nodes(8)
    (tmp_path / "dev" / name).unlink()
    own = editor(tree)
    own.check(tree.driver)
    paths = [node.path for node in own.base(tree.driver).device_nodes]
    assert f"/dev/{name}" not in paths
    assert len(paths) == 3


@pytest.mark.parametrize(
    ("name", "found", "served"),
    [
        ("nvidia-uvm", (511, 0), "510:0"),
        ("nvidia-uvm", (510, 1), "510:0"),
        ("nvidiactl", (195, 254), "195:255"),
        ("nvidia3", (195, 2), "195:3"),
        ("nvidia3", (1, 3), "195:3"),
    ],
)
def test_a_node_of_another_boot_is_not_given_out(
    tmp_path: Path, name: str, found: tuple[int, int], served: str
) -> None:
    tree = host(tmp_path).nodes(8)
    tree.node(name, found)
    said = missing(tree)
    assert f"/dev/{name} is stale" in said
    assert f"its numbers are {found[0]}:{found[1]}, and {served} are served" in said


def test_a_node_whose_module_is_not_loaded_is_not_given_out(tmp_path: Path) -> None:
    tree = host(tmp_path).kernel(uvm=None).nodes(8)
    assert "/dev/nvidia-uvm is of no use: the kernel module nvidia-uvm is not loaded" in missing(tree)


def test_a_kernel_that_does_not_tell_is_no_obstacle(tmp_path: Path) -> None:
    tree = host(tmp_path).nodes(8)
    for text in ("", "Character devices:\n  1 mem\n\nBlock devices:\n", "garbage nvidia-uvm\nnvidia\n"):
        tree.tree.write("proc/devices", text)
        editor(tree).check(tree.driver)
    tree.tree.remove("proc/devices")
    editor(tree).check(tree.driver)


def test_other_files_are_no_nodes(tmp_path: Path) -> None:
    tree = host(tmp_path).nodes(8)
    node = tmp_path / "dev/nvidia3"
    node.unlink()
    node.touch()
    assert "/dev/nvidia3 is missing" in missing(tree)
    node.unlink()
    node.symlink_to("nvidia3")
    assert "/dev/nvidia3 is missing" in missing(tree)
    node.unlink()
    node.mkdir()
    assert "/dev/nvidia3 is missing" in missing(tree)


def test_a_link_is_followed_since_runtimes_do_not(tmp_path: Path) -> None:
    tree = host(tmp_path).nodes(8)
    (tmp_path / "dev/nvidia3").rename(tmp_path / "dev/moved")
    (tmp_path / "dev/nvidia3").symlink_to("/dev/moved")
    assert editor(tree).gpu(GPU3).device_nodes == (
        DeviceNode("/dev/nvidia3", host_path="/dev/moved", permissions="rw"),
    )


# --- driver containers


def test_a_driver_container_may_have_the_nodes(tmp_path: Path) -> None:
    tree = host(tmp_path, CONTAINER).nodes(8, root="/run/nvidia/driver")
    own = editor(tree)
    own.check(tree.driver)
    nodes = (*own.base(tree.driver).device_nodes, *own.gpu(GPU3).device_nodes)
    for node in nodes:
        assert node.host_path == f"/run/nvidia/driver{node.path}"
        assert node.path.startswith("/dev/nvidia")


def test_nodes_of_the_host_are_taken_where_they_serve_and_those_of_the_driver_container_else(
    tmp_path: Path,
) -> None:
    tree = host(tmp_path, CONTAINER).nodes(8).nodes(8, root="/run/nvidia/driver")
    tree.node("nvidia-uvm", (511, 0))  # of an earlier load of the module
    own = editor(tree)
    own.check(tree.driver)
    places = {node.path: node.host_path for node in own.base(tree.driver).device_nodes}
    assert places["/dev/nvidiactl"] == ""
    assert places["/dev/nvidia-uvm"] == "/run/nvidia/driver/dev/nvidia-uvm"


def test_a_driver_root_without_nodes_has_those_of_the_host(tmp_path: Path) -> None:
    tree = host(tmp_path, GKE).nodes(8)
    editor(tree).check(tree.driver)
    assert editor(tree).gpu(GPU3).device_nodes[0].host_path == ""
    (tmp_path / "dev/nvidia3").unlink()
    assert "is missing on the host and in the driver root '/home/kubernetes/bin/nvidia'" in missing(tree)


# --- MIG


def test_a_mig_device_needs_its_gpu_and_two_capabilities(tmp_path: Path) -> None:
    tree = host(tmp_path).nodes(8).capability(3, "gi7", 471).capability(3, "gi7/ci0", 472)
    tree.capability(0, "gi7", 66).capability(0, "gi7/ci0", 67)
    nodes = editor(tree).instance(GPU3, 7, 0).device_nodes
    assert [node.path for node in nodes] == [
        "/dev/nvidia3",
        "/dev/nvidia-caps/nvidia-cap471",
        "/dev/nvidia-caps/nvidia-cap472",
    ]


def test_a_capability_without_a_node_is_named(tmp_path: Path) -> None:
    tree = host(tmp_path).nodes(8).capability(3, "gi7", 471).capability(3, "gi7/ci0", 472, node=False)
    with pytest.raises(MissingNodeError, match="/dev/nvidia-caps/nvidia-cap472 is missing"):
        editor(tree).instance(GPU3, 7, 0)
    tree.capability(3, "gi7/ci0", 472, major=237)
    with pytest.raises(MissingNodeError, match="/dev/nvidia-caps/nvidia-cap472 is stale"):
        editor(tree).instance(GPU3, 7, 0)


@pytest.mark.parametrize(
    "text", [None, "", "DeviceFileMinor: x", "DeviceFileMinor: -1", "NotDeviceFileMinor: 5"]
)
def test_a_capability_that_the_driver_does_not_tell_is_an_error(tmp_path: Path, text: str | None) -> None:
    tree = host(tmp_path).nodes(8).capability(3, "gi7", 471)
    path = "proc/driver/nvidia/capabilities/gpu3/mig/gi7/ci0/access"
    if text is not None:
        tree.tree.write(path, text)
    with pytest.raises(MissingNodeError, match=f"/{path} does not tell its DeviceFileMinor"):
        editor(tree).instance(GPU3, 7, 0)


def test_a_gpu_without_a_minor_number_is_an_error(tmp_path: Path) -> None:
    tree = host(tmp_path).nodes(8)
    with pytest.raises(MissingNodeError, match="does not tell the minor number of gpu-0000-41-00-0"):
        editor(tree).gpu(GPU("0000:41:00.0"))
