"""The example backend, driven through the engine on real directories."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dradriver.backend import ConfigError, decode
from dradriver.claims import DirectoryClaims
from dradriver.engine import CDIFiles, Engine, Pools, open_journal, refresh_all
from dradriver.host import Host
from dradriver.model import ClaimRef, PreparedDevice, Quantity
from dradriver_cdi import Store
from dradriver_scratch import MIB, ScratchBackend, ScratchOptions

DRIVER = "scratch.example.com"


class Disks:
    """A host with two disks, and an engine that gives out room on them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for disk in ("nvme0", "nvme1"):
            (root / "host" / "mnt" / disk).mkdir(parents=True)
        (root / "claims").mkdir()
        directories = {"nvme0": "/mnt/nvme0", "nvme1": "/mnt/nvme1", "absent": "/mnt/absent"}
        self.backend = ScratchBackend(Host(root / "host"), ScratchOptions(directories=directories))
        self.pools = Pools("n1", [(DRIVER, self.backend)])
        refresh_all(self.pools.all)
        self.journal, _ = open_journal(root / "journal.db")
        self.engine = Engine(
            self.pools,
            DirectoryClaims(root / "claims"),
            self.journal,
            CDIFiles(Store(root / "cdi")),
            "boot-1",
        )
        self.engine.recover()

    def claim(self, name: str, size: str, **parameters: Any) -> ClaimRef:
        ref = ClaimRef(f"uid-{name}", "default", name)
        result = {
            "request": "room",
            "driver": DRIVER,
            "pool": "n1/scratch",
            "device": "scratch-nvme0",
            "shareID": f"share-{name}",
            "consumedCapacity": {"storage": size},
        }
        opaque = {
            "driver": DRIVER,
            "parameters": {"apiVersion": "dradriver.io/v1alpha1", "kind": "ScratchConfig"} | parameters,
        }
        devices = {"results": [result], "config": [{"source": "FromClaim", "opaque": opaque}]}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": ref.uid},
            "status": {"allocation": {"devices": devices}},
        }
        (self.root / "claims" / f"{name}.json").write_text(json.dumps(body))
        return ref

    def prepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...] | str:
        return self.engine.prepare(DRIVER, [ref], time.monotonic() + 20)[ref.uid]

    def unprepare(self, ref: ClaimRef) -> str | None:
        return self.engine.unprepare(DRIVER, [ref], time.monotonic() + 20)[ref.uid]

    def mounts(self) -> list[dict[str, Any]]:
        files = sorted((self.root / "cdi").glob("*.json"))
        specs = [json.loads(file.read_text()) for file in files]
        return [mount for spec in specs for mount in spec["devices"][0]["containerEdits"]["mounts"]]


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    disks = Disks(tmp_path)
    yield disks
    disks.engine.close()
    disks.journal.close()


def test_every_disk_that_is_there_is_a_shared_device(disks: Disks) -> None:
    content = disks.pools.all[0].snapshot.content
    assert [device.name for device in content.devices] == ["scratch-nvme0", "scratch-nvme1"]
    (device, _) = content.devices
    assert device.shared
    assert device.capacity["storage"].value > Quantity.from_int(MIB)


def test_a_claim_gets_a_directory_of_its_own_until_it_ends(disks: Disks) -> None:
    ref = disks.claim("a", "1Mi", mountPath="/data")
    answer = disks.prepare(ref)
    assert not isinstance(answer, str)
    assert answer[0].share_id == "share-a"
    directory = disks.root / "host" / "mnt" / "nvme0" / "uid-a-0"
    assert directory.is_dir()
    assert directory.stat().st_mode & 0o777 == 0o777
    assert disks.mounts() == [
        {"hostPath": "/mnt/nvme0/uid-a-0", "containerPath": "/data", "options": ["rbind", "rw"]}
    ]
    (directory / "deep" / "er").mkdir(parents=True)
    (directory / "deep" / "link").symlink_to(disks.root)
    assert disks.prepare(ref) == answer
    assert (directory / "deep").is_dir(), "a repeat leaves what the pod wrote"
    assert disks.unprepare(ref) is None
    assert not directory.exists()
    assert disks.root.exists()
    assert disks.mounts() == []


def test_room_is_given_out_once(disks: Disks) -> None:
    total = disks.pools.all[0].snapshot.content.devices[0].capacity["storage"].value
    first = disks.claim("a", str(total))
    assert not isinstance(disks.prepare(first), str)
    answer = disks.prepare(disks.claim("b", "1Mi"))
    assert isinstance(answer, str)
    assert f"storage of device scratch-nvme0: 1Mi asked, 0 of {total} left" in answer
    assert "default/a" in answer
    assert disks.unprepare(first) is None
    assert not isinstance(disks.prepare(disks.claim("b", "1Mi")), str)


def test_two_claims_share_a_disk(disks: Disks) -> None:
    refs = [disks.claim("a", "1Mi"), disks.claim("b", "1Mi")]
    assert not any(isinstance(disks.prepare(ref), str) for ref in refs)
    assert [mount["hostPath"] for mount in disks.mounts()] == ["/mnt/nvme0/uid-a-0", "/mnt/nvme0/uid-b-0"]


@pytest.mark.parametrize("path", ["data", "/a/../b", "", 5])
def test_a_wrong_mount_path_is_refused(disks: Disks, path: Any) -> None:
    answer = disks.prepare(disks.claim("a", "1Mi", mountPath=path))
    assert isinstance(answer, str)
    assert "mountPath" in answer
    assert list((disks.root / "host" / "mnt" / "nvme0").iterdir()) == []


def test_a_disk_that_vanished_keeps_no_pod_from_ending(disks: Disks) -> None:
    ref = disks.claim("a", "1Mi")
    assert not isinstance(disks.prepare(ref), str)
    (disks.root / "host" / "mnt" / "nvme0" / "uid-a-0").rmdir()
    (disks.root / "host" / "mnt" / "nvme0").rmdir()
    disks.pools.all[0].refresh()
    assert disks.unprepare(ref) is None


@pytest.mark.parametrize("directories", [{"A": "/x"}, {"a": "x"}, {"../a": "/x"}, [], {"a": 5}])
def test_wrong_options_are_refused(directories: Any) -> None:
    with pytest.raises(ConfigError, match=r"backends\.scratch"):
        decode(ScratchOptions, {"directories": directories}, "backends.scratch")
