"""How MPS control daemons are started for drivers that are where distributions, containers and Google have them."""

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from dradriver.backend import BackendError, UnavailableError
from dradriver.host import Host
from dradriver_gpu.mps import Limits, Mps, Systemd
from dradriver_gpu.tools import Tools
from drivertree import CONTAINER, FEDORA, GKE, DriverTree, Layout


class Units:
    """A host with a driver, whose systemd notes what it is to run."""

    def __init__(self, root: Path, layout: Layout) -> None:
        self.root = root
        tree = DriverTree(root, layout).install()
        tree.program("nvidia-cuda-mps-control", "#!/bin/sh\nexit 0\n")
        if layout is CONTAINER:
            tree.write("etc/os-release", "ID=ubuntu\n")
        for name, text in (
            ("systemctl", "echo inactive"),
            ("systemd-run", f'printf "%s\\n" "$@" > {root}/unit'),
        ):
            DriverTree.executable(root / "usr/bin" / name, f"#!/bin/sh\n{text}\n")
        (root / "dev/shm").mkdir(parents=True)
        (root / "run/systemd/system").mkdir(parents=True)
        host = Host(root)
        self.mps = Mps(host, "/run/gpu", layout.root, Tools(host, layout.root), Systemd(host))

    def start(self, name: str = "claim-a") -> list[str]:
        self.mps.start(name, ("GPU-1", "GPU-2"), Limits(), -1, threading.Event())
        return (self.root / "unit").read_text().splitlines()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a directory for the root of this machine."""
    monkeypatch.setattr(Systemd, "_is_elsewhere", lambda self: False)


@pytest.mark.usefixtures("here")
def test_the_driver_of_the_host_is_run_as_it_is(tmp_path: Path) -> None:
    words = Units(tmp_path, FEDORA).start()
    assert words[words.index("--") :] == ["--", "/usr/bin/nvidia-cuda-mps-control", "-f"]
    assert "--setenv=CUDA_VISIBLE_DEVICES=GPU-1,GPU-2" in words
    assert "--setenv=CUDA_MPS_PIPE_DIRECTORY=/run/gpu/mps/claim-a/pipe" in words
    assert not [word for word in words if "RootDirectory" in word or "LD_LIBRARY_PATH" in word]


@pytest.mark.usefixtures("here")
def test_a_driver_container_is_its_root(tmp_path: Path) -> None:
    words = Units(tmp_path, CONTAINER).start()
    assert words[words.index("--") :] == ["--", "/usr/bin/nvidia-cuda-mps-control", "-f"]
    assert {
        "--property=RootDirectory=/run/nvidia/driver",
        "--property=MountAPIVFS=yes",
        "--property=BindPaths=/dev/shm/dradriver-mps-claim-a:/dev/shm",
        "--property=BindPaths=/run/gpu/mps/claim-a/pipe",
        "--property=BindPaths=/run/gpu/mps/claim-a/log",
    } <= set(words)


@pytest.mark.usefixtures("here")
def test_a_directory_with_the_driver_has_its_libraries_found(tmp_path: Path) -> None:
    words = Units(tmp_path, GKE).start()
    assert words[words.index("--") :] == [
        "--",
        "/home/kubernetes/bin/nvidia/bin/nvidia-cuda-mps-control",
        "-f",
    ]
    assert "--setenv=LD_LIBRARY_PATH=/home/kubernetes/bin/nvidia/lib64" in words


@pytest.mark.usefixtures("here")
def test_a_link_that_somebody_put_in_the_place_of_a_directory_leads_nowhere(tmp_path: Path) -> None:
    units = Units(tmp_path, FEDORA)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    link = tmp_path / "dev/shm/dradriver-mps-claim-a"
    link.symlink_to("/precious")
    units.start()
    assert not link.is_symlink()
    units.mps.end("claim-a")
    link.symlink_to("/precious")
    units.mps.end("claim-a")
    assert (precious / "file").exists()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", "A", "a b", "a" * 90, "a.service"])
def test_what_is_no_name_becomes_no_path_and_no_unit(tmp_path: Path, name: str) -> None:
    units = Units(tmp_path, FEDORA)
    with pytest.raises(BackendError, match="is no name of an MPS control daemon"):
        units.start(name)
    assert not (tmp_path / "unit").exists()


def test_the_systemd_of_a_host_that_is_seen_elsewhere_is_not_asked(tmp_path: Path) -> None:
    units = Units(tmp_path, FEDORA)
    with pytest.raises(BackendError, match="option hostRoot") as caught:
        units.start()
    assert "option mpsLauncher: pod" in str(caught.value)
    assert not (tmp_path / "unit").exists()
    units.mps.end("claim-a")
    (tmp_path / "run/gpu/mps/claim-a").mkdir(parents=True)
    with pytest.raises(UnavailableError, match="whether the MPS control daemon claim-a runs is not known"):
        units.mps.end("claim-a")


@pytest.mark.usefixtures("here")
def test_a_host_without_systemd_is_told(tmp_path: Path) -> None:
    units = Units(tmp_path, FEDORA)
    (tmp_path / "run/systemd/system").rmdir()
    with pytest.raises(BackendError, match="systemd does not run here"):
        units.start()
    units.mps.end("claim-a")


@pytest.mark.skipif(not shutil.which("systemctl"), reason="systemctl is not installed")
def test_this_machine_is_one_of_both() -> None:
    """What is said of systemd here is what systemd itself says."""
    said = subprocess.run(["systemctl", "is-system-running"], capture_output=True, text=True, check=False)
    assert (Systemd(Host()).unreachable() == "") == (said.stdout.strip() not in {"", "offline"})
