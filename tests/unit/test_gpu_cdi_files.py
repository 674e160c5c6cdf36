"""Programs, firmware, configuration, sockets and hooks: what is found, and where containers get it."""

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dradriver_cdi import ContainerEdits, Hook
from dradriver_gpu.cdi import ContainerEditor
from dradriver_gpu.inventory import GPU
from drivertree import ALL, CONTAINER, DEBIAN, GKE, OLDER, UBUNTU, VERSION, DriverTree, Layout, numbers

LIB = "/usr/local/nvidia/lib64"
DEFAULT = ("compute", "utility")
COMMANDS = ("create-symlinks", "update-ldcache", "enable-cuda-compat", "disable-device-node-modification")
PERSISTENCED = "run/nvidia-persistenced/socket"


def base(tree: DriverTree, capabilities: Collection[str] = DEFAULT) -> ContainerEdits:
    return ContainerEditor(tree.host, tree.layout.root, capabilities, numbers=numbers).base(tree.driver)


def mounted(tree: DriverTree, capabilities: Collection[str] = DEFAULT) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in base(tree, capabilities).mounts}


def hooks(tree: DriverTree, capabilities: Collection[str] = DEFAULT) -> dict[str, Hook]:
    """Return the hooks by command, in their order."""
    found = base(tree, capabilities).hooks
    for hook in found:
        assert hook.hook_name == "createContainer"
        assert hook.args[0] == hook.path.rpartition("/")[2]
    return {hook.args[2] if hook.args[0] == "nvidia-ctk" else hook.args[1]: hook for hook in found}


def links(hook: Hook) -> dict[str, str]:
    """Return the links that a hook makes: where -> what it holds."""
    pairs = (
        link.split("::") for link in hook.args[hook.args.index("create-symlinks") + 1 :] if link != "--link"
    )
    return {place: target for target, place in pairs}


@contextmanager
def listening(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        directory = os.open(path.parent, os.O_PATH)
        try:
            server.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
        yield


# --- programs


def test_programs_go_by_capability(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    names = {path for path in mounted(tree, ("utility",)) if path.startswith("/usr/bin/")}
    assert names == {"/usr/bin/nvidia-smi", "/usr/bin/nvidia-debugdump", "/usr/bin/nvidia-persistenced"}
    names = {path for path in mounted(tree, ("compute",)) if path.startswith("/usr/bin/")}
    assert names == {"/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-server"}


def test_of_two_programs_of_one_name_that_of_the_driver_is_taken(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    tree.program("nvidia-smi", f"#!/bin/sh\n# {OLDER}\n")
    newer = tmp_path / "usr/local/bin/nvidia-smi"
    tree.executable(newer, f"#!/bin/sh\n# {VERSION}\n")
    assert mounted(tree)["/usr/bin/nvidia-smi"] == "/usr/local/bin/nvidia-smi"


def test_what_cannot_be_executed_is_no_program(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    (tmp_path / "usr/bin/nvidia-smi").chmod(0o644)
    assert "/usr/bin/nvidia-smi" not in mounted(tree)


# --- firmware


@pytest.mark.parametrize("layout", [UBUNTU, CONTAINER, GKE], ids=lambda layout: layout.name)
def test_firmware_is_where_the_kernel_would_look(tmp_path: Path, layout: Layout) -> None:
    tree = DriverTree(tmp_path, layout).install()
    mounts = mounted(tree)
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
        assert mounts[f"/lib/firmware/nvidia/{VERSION}/{name}"].endswith(
            f"/lib/firmware/nvidia/{VERSION}/{name}"
        )


def test_firmware_from_where_the_kernel_was_told_goes_first(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    tree.tree.write("sys/module/firmware_class/parameters/path", "/opt/firmware")
    tree.write(f"opt/firmware/nvidia/{VERSION}/gsp_ga10x.bin", "")
    mounts = mounted(tree)
    assert mounts[f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"].startswith("/opt/firmware/")
    assert mounts[f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin"].startswith("/usr/lib/firmware/")


# --- configuration


def test_loaders_find_what_they_look_for(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install(ALL)
    for path in (
        "etc/OpenCL/vendors/nvidia.icd",
        "usr/share/vulkan/icd.d/nvidia_icd.json",
        "usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    ):
        tree.write(path, "{}")
    opencl = {"/etc/OpenCL/vendors/nvidia.icd": "/etc/OpenCL/vendors/nvidia.icd"}
    assert opencl.items() <= mounted(tree).items()
    assert not any("vulkan" in path or "egl" in path for path in mounted(tree))
    mounts = mounted(tree, ("graphics",))
    assert mounts["/etc/vulkan/icd.d/nvidia_icd.json"] == "/usr/share/vulkan/icd.d/nvidia_icd.json"
    assert "/etc/vulkan/implicit_layer.d/nvidia_layers.json" in mounts
    assert "/usr/share/glvnd/egl_vendor.d/10_nvidia.json" in mounts
    assert "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json" in mounts
    assert "/etc/OpenCL/vendors/nvidia.icd" not in mounts


def test_vulkan_is_found_at_the_top_of_a_root_that_has_the_driver_alone(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path, GKE).install(ALL)
    tree.write("vulkan/icd.d/nvidia_icd.json", "{}")
    path = "/home/kubernetes/bin/nvidia/vulkan/icd.d/nvidia_icd.json"
    assert mounted(tree, ("graphics",))["/etc/vulkan/icd.d/nvidia_icd.json"] == path


def test_the_x_server_finds_its_modules(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install(ALL)
    tree.write("usr/lib/x86_64-linux-gnu/nvidia/xorg/nvidia_drv.so", VERSION)
    tree.write(f"usr/lib/x86_64-linux-gnu/nvidia/xorg/libglxserver_nvidia.so.{VERSION}", VERSION)
    tree.write("usr/lib/xorg/modules/drivers/nvidia_drv.so", OLDER)
    tree.write("usr/share/X11/xorg.conf.d/10-nvidia.conf", "")
    mounts = mounted(tree, ("display",))
    own = "/usr/lib/x86_64-linux-gnu/nvidia/xorg"
    for directory in (own, "/usr/lib/xorg/modules/drivers", "/usr/lib64/xorg/modules/drivers"):
        assert mounts[f"{directory}/nvidia_drv.so"] == f"{own}/nvidia_drv.so"
    for directory in (own, "/usr/lib/xorg/modules/extensions", "/usr/lib64/xorg/modules/extensions"):
        for name in (f"libglxserver_nvidia.so.{VERSION}", "libglxserver_nvidia.so"):
            assert mounts[f"{directory}/{name}"] == f"{own}/libglxserver_nvidia.so.{VERSION}"
    assert "/usr/share/X11/xorg.conf.d/10-nvidia.conf" in mounts
    assert f"{LIB}/libGLX_nvidia.so.0" in mounts  # what is shown has to be drawn
    assert not any("xorg" in path for path in mounted(tree, ("graphics",)))


# --- sockets


def test_sockets_are_given_out_while_they_are_there(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    assert f"/{PERSISTENCED}" not in mounted(tree)
    with listening(tmp_path / PERSISTENCED):
        mount = next(one for one in base(tree).mounts if one.container_path == f"/{PERSISTENCED}")
        assert mount.host_path == f"/{PERSISTENCED}"
        assert "ro" not in mount.options
        assert {"nosuid", "nodev", "noexec"} <= set(mount.options)
        assert f"/{PERSISTENCED}" not in mounted(tree, ("compute",))
    (tmp_path / PERSISTENCED).unlink()
    (tmp_path / PERSISTENCED).write_text("no socket")
    assert f"/{PERSISTENCED}" not in mounted(tree)


def test_a_driver_container_has_its_sockets_in_its_root(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path, CONTAINER).install()
    with listening(tmp_path / PERSISTENCED):
        assert mounted(tree)[f"/{PERSISTENCED}"] == f"/{PERSISTENCED}"
        with listening(tree.root / PERSISTENCED):
            assert mounted(tree)[f"/{PERSISTENCED}"] == f"/run/nvidia/driver/{PERSISTENCED}"


def pipes(tree: DriverTree, capabilities: Collection[str] = DEFAULT) -> list[str]:
    """Return where the pipes are on the host that come along with a GPU."""
    tree.kernel().nodes()
    editor = ContainerEditor(tree.host, tree.layout.root, capabilities, numbers=numbers)
    mounts = editor.gpu(GPU("0000:41:00.0", minor=0)).mounts
    assert {mount.container_path for mount in mounts} <= {"/tmp/nvidia-mps"}
    return [mount.host_path for mount in mounts if "ro" not in mount.options]


def test_an_mps_daemon_of_the_host_is_given_out(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path, GKE).install()
    (tmp_path / "tmp/nvidia-mps").mkdir(parents=True)
    assert pipes(tree) == []
    os.mkfifo(tmp_path / "tmp/nvidia-mps/control")
    assert pipes(tree) == ["/tmp/nvidia-mps"]
    assert pipes(tree, ("utility",)) == []
    (tree.root / "tmp/nvidia-mps").mkdir(parents=True)
    (tree.root / "tmp/nvidia-mps/control").touch()
    assert pipes(tree) == ["/home/kubernetes/bin/nvidia/tmp/nvidia-mps"]


def test_nobody_leads_containers_elsewhere_by_a_link_in_tmp(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    (tmp_path / "etc/secrets").mkdir(parents=True)
    (tmp_path / "etc/secrets/control").touch()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/nvidia-mps").symlink_to("/etc/secrets")
    assert pipes(tree) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away takes root")
def test_an_mps_daemon_of_somebody_else_is_not_given_out(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install()
    directory = tmp_path / "tmp/nvidia-mps"
    directory.mkdir(parents=True)
    (directory / "control").touch()
    os.chown(directory, 1234, 1234)
    assert pipes(tree) == []


# --- hooks


def test_with_hooks_names_are_links_and_the_cache_is_made_anew(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install().hooks(COMMANDS)
    edits = base(tree)
    found = hooks(tree)
    assert list(found) == [COMMANDS[0], COMMANDS[2], COMMANDS[1], COMMANDS[3]]
    made = links(found["create-symlinks"])
    assert made[f"{LIB}/libcuda.so.1"] == f"libcuda.so.{VERSION}"
    assert made[f"{LIB}/libcuda.so"] == "libcuda.so.1"
    assert found["update-ldcache"].args == ("nvidia-cdi-hook", "update-ldcache", "--folder", LIB)
    assert found["enable-cuda-compat"].args[2:] == (f"--host-driver-version={VERSION}",)
    assert not [variable for variable in edits.env if variable.startswith("LD_LIBRARY_PATH")]
    paths = {mount.container_path for mount in edits.mounts}
    assert f"{LIB}/libcuda.so.{VERSION}" in paths
    assert not paths & made.keys()


def test_only_commands_that_the_program_knows_are_called(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install().hooks(("create-symlinks", "update-ldcache"))
    assert list(hooks(tree)) == ["create-symlinks", "update-ldcache"]


def test_a_program_that_cannot_do_what_is_needed_is_not_called(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install().hooks(("create-symlinks",))
    assert hooks(tree) == {}
    assert f"{LIB}/libcuda.so.1" in mounted(tree)


def test_without_ldconfig_on_the_host_there_are_no_hooks(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install().hooks(COMMANDS)
    tree.host.path("sbin/ldconfig").unlink()
    assert hooks(tree) == {}
    assert f"{LIB}/libcuda.so.1" in mounted(tree)


def test_a_program_that_anybody_may_change_is_not_called(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install().hooks(COMMANDS)
    (tmp_path / "usr/bin/nvidia-cdi-hook").chmod(0o777)
    assert hooks(tree) == {}


def test_the_program_is_that_of_the_host_whatever_the_driver_root(tmp_path: Path) -> None:
    tree = (
        DriverTree(tmp_path, CONTAINER).install().hooks(COMMANDS, "usr/local/nvidia/toolkit/nvidia-cdi-hook")
    )
    assert {hook.path for hook in base(tree).hooks} == {"/usr/local/nvidia/toolkit/nvidia-cdi-hook"}


def test_a_script_stands_for_the_program_that_it_calls(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install().hooks(COMMANDS, "usr/local/nvidia/toolkit/nvidia-cdi-hook.real")
    script = tmp_path / "usr/local/nvidia/toolkit/nvidia-cdi-hook"
    tree.executable(script, '#!/bin/sh\nexec "$0.real" "$@"\n')
    assert {hook.path for hook in base(tree).hooks} == {"/usr/local/nvidia/toolkit/nvidia-cdi-hook"}


def test_the_older_program_has_the_hooks_below_a_command(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install().hooks(("create-symlinks", "update-ldcache"), "usr/bin/nvidia-ctk")
    found = hooks(tree)
    assert found["update-ldcache"].args == ("nvidia-ctk", "hook", "update-ldcache", "--folder", LIB)


def test_what_draws_is_told_which_gpus_it_has(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path, DEBIAN).install(ALL).hooks((*COMMANDS, "update-application-profile"))
    assert "update-application-profile" in hooks(tree, ("graphics",))
    assert links(hooks(tree, ("graphics",))["create-symlinks"])[f"{LIB}/libGLX_indirect.so.0"] == (
        f"libGLX_nvidia.so.{VERSION}"
    )
    assert "update-application-profile" not in hooks(tree)


def test_a_gpu_that_draws_brings_its_nodes_and_links(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path).install(ALL).kernel().nodes().hooks(COMMANDS)
    gpu = GPU("0000:41:00.0", minor=0)
    for name, device in (("card1", (226, 1)), ("renderD128", (226, 128)), ("card1-DP-1", (226, 9))):
        tree.tree.write(f"sys/bus/pci/devices/{gpu.address}/drm/{name}/dev", "{}:{}".format(*device))
        tree.node(f"dri/{name}", device)
    editor = ContainerEditor(tree.host, "/", ("graphics",), numbers=numbers)
    edits = editor.gpu(gpu)
    assert [node.path for node in edits.device_nodes] == [
        "/dev/nvidia0",
        "/dev/dri/card1",
        "/dev/dri/renderD128",
    ]
    assert links(edits.hooks[0]) == {
        "/dev/dri/by-path/pci-0000:41:00.0-card": "../card1",
        "/dev/dri/by-path/pci-0000:41:00.0-render": "../renderD128",
    }
    plain = ContainerEditor(tree.host, "/", DEFAULT, numbers=numbers).gpu(gpu)
    assert [node.path for node in plain.device_nodes] == ["/dev/nvidia0"]
    tree.node("dri/renderD128", (226, 129))
    assert [node.path for node in editor.gpu(gpu).device_nodes] == ["/dev/nvidia0", "/dev/dri/card1"]
