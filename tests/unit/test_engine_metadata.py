"""Containers find files that describe their devices, in the form and at the places of KEP-5304."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dradriver.engine import MetadataFiles
from dradriver.model import ClaimRef
from fakenode import machine
from lever import DRIVER, Node, claim_object, result

MOUNTED = "/var/run/kubernetes.io/dra-device-attributes"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


def objects(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file, read as a stream of JSON as the API's own reader does."""
    text, found = path.read_text(), []
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        found.append(value)
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


def files(node: Node) -> dict[str, Path]:
    """Return the files of a node by `<namespace>_<claim>/<request>`, and whatever else lies beside them by its path."""
    root = node.kubelet / "plugins" / DRIVER / "dra-device-metadata"
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.name == "metadata.json":
            found[name.removesuffix("/metadata.json")] = path
        elif path.is_file() or not any(path.iterdir()):
            found[name] = path
    return found


def mounts(node: Node) -> list[list[tuple[str, str]]]:
    """Return what each device of the one CDI file mounts."""
    (spec,) = map(json.loads, node.specs.values())
    return [
        [(mount["hostPath"], mount["containerPath"]) for mount in device["containerEdits"].get("mounts", ())]
        for device in spec["devices"]
    ]


def test_a_request_has_a_file_in_both_versions_with_all_that_is_known_of_its_devices(node: Node) -> None:
    ref = node.claim("a", "lever-0", result("lever-1", request="other"), "lever-2")
    assert not isinstance(node.prepare(ref), str)
    assert set(files(node)) == {"default_a/r", "default_a/other"}
    newest, oldest = objects(files(node)["default_a/r"])
    assert newest == {
        "apiVersion": "metadata.resource.k8s.io/v1beta1",
        "kind": "DeviceMetadata",
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-a", "generation": 1},
        "requests": [
            {
                "name": "r",
                "devices": [
                    {
                        "driver": DRIVER,
                        "pool": "n1/lever",
                        "name": name,
                        "attributes": {
                            "note": {"string": ""},
                            "resource.kubernetes.io/numaNode": {"int": 0},
                        },
                    }
                    for name in ("lever-0", "lever-2")
                ],
            }
        ],
    }
    assert oldest == newest | {"apiVersion": "metadata.resource.k8s.io/v1alpha1"}
    assert node.unprepare(ref) is None
    assert files(node) == {}


def test_the_file_is_mounted_read_only_once_for_each_request(node: Node) -> None:
    ref = node.claim("a", "lever-0", result("lever-1", request="other"), "lever-2")
    node.prepare(ref)
    where = {name: str(path) for name, path in files(node).items()}
    first, second, third = mounts(node)
    assert first == [(where["default_a/r"], f"{MOUNTED}/resourceclaims/a/r/{DRIVER}-metadata.json")]
    assert second == [(where["default_a/other"], f"{MOUNTED}/resourceclaims/a/other/{DRIVER}-metadata.json")]
    assert third == []
    (spec,) = map(json.loads, node.specs.values())
    assert spec["devices"][0]["containerEdits"]["mounts"][0]["options"] == ["ro", "bind"]
    assert files(node)["default_a/r"].stat().st_mode & 0o777 == 0o644


def test_a_claim_of_a_template_is_found_by_the_name_that_the_pod_has_for_it(node: Node) -> None:
    ref = node.claim("pod-x7k2p", result("lever-0", request="gpu/big"), pod_claim="gpus")
    node.prepare(ref)
    ((_, path),) = mounts(node)[0]
    assert path == f"{MOUNTED}/resourceclaimtemplates/gpus/gpu/{DRIVER}-metadata.json"
    for version in objects(files(node)["default_pod-x7k2p/gpu"]):
        assert version["podClaimName"] == "gpus"
        assert [request["name"] for request in version["requests"]] == ["gpu/big"], "in full, unlike the path"


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "Upper", "x" * 64, "a\nb", 7, None, {"a": 1}])
def test_what_anybody_wrote_as_the_pods_name_reaches_no_path(node: Node, name: object) -> None:
    obj = claim_object(ClaimRef("uid-a", "default", "a"), ["lever-0"])
    obj["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": name}
    (node.files / "a.json").write_text(json.dumps(obj))
    assert not isinstance(node.prepare(ClaimRef("uid-a", "default", "a")), str)
    ((_, path),) = mounts(node)[0]
    assert path == f"{MOUNTED}/resourceclaims/a/r/{DRIVER}-metadata.json"
    assert "podClaimName" not in objects(files(node)["default_a/r"])[0]


def test_names_that_are_too_long_together_still_have_a_directory_of_their_own(node: Node) -> None:
    long = ["-".join(["c" * 60] * 4) + end for end in ("x", "y")]
    assert all(len(name) < 253 for name in long)
    refs = []
    for number, name in enumerate(long):
        ref = ClaimRef(f"uid-{number}", "n" * 63, name)
        (node.files / f"{number}.json").write_text(json.dumps(claim_object(ref, [f"lever-{number}"])))
        assert not isinstance(node.prepare(ref), str)
        refs.append(ref)
    assert len(files(node)) == 2
    assert all(len(part) <= 255 for name in files(node) for part in name.split("/"))
    assert node.unprepare(refs[0]) is None
    (left,) = files(node).values()
    assert objects(left)[0]["metadata"]["name"] == long[1]


def test_a_repeat_leaves_a_file_that_is_right_alone_and_writes_one_that_is_lost(node: Node) -> None:
    """A container that runs has the very file mounted."""
    ref = node.claim("a", "lever-0")
    node.prepare(ref)
    path = files(node)["default_a/r"]
    before, content = path.stat().st_ino, path.read_bytes()
    node.prepare(ref)
    assert path.stat().st_ino == before
    path.write_bytes(content[:40])
    node.prepare(ref)
    assert path.read_bytes() == content
    shutil.rmtree(node.kubelet)
    again = node.restart()
    assert path.read_bytes() == content
    again.close()


def test_what_changed_since_raises_the_generation(tmp_path: Path) -> None:
    with machine(tmp_path) as made:
        ref = made.claim("a", "nic-0000-44-00-3")
        assert not isinstance(made.prepare(ref, "nic"), str)
        path = made.metadata(ref, "nic", "r0")
        first = objects(path)[0]
        assert first["metadata"]["generation"] == 1
        pool = made.pool("nic")
        device = pool.snapshot.index["nic-0000-44-00-3"]
        changed = replace(device, attributes={**device.attributes, "mtu": 9000, "endless": "x" * 65})
        pool.snapshot = replace(pool.snapshot, index={**pool.snapshot.index, device.name: changed})
        assert not isinstance(made.prepare(ref, "nic"), str)
        second = objects(path)[0]
        assert second["metadata"]["generation"] == 2
        assert attributes(first)["mtu"] == {"int": 1500}
        assert attributes(second)["mtu"] == {"int": 9000}
        assert "endless" not in attributes(second), "as in the slices"
        made.prepare(ref, "nic")
        assert objects(path)[0] == second


def attributes(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of the first device."""
    found: dict[str, Any] = obj["requests"][0]["devices"][0]["attributes"]
    return found


def test_a_network_device_tells_its_interface(tmp_path: Path) -> None:
    with machine(tmp_path) as made:
        ref = made.claim("a", "nic-0000-44-00-3")
        made.prepare(ref, "nic")
        mac = made.devices("nic")["nic-0000-44-00-3"].attributes["mac"]
        device = objects(made.metadata(ref, "nic", "r0"))[0]["requests"][0]["devices"][0]
        assert device["attributes"]["ifName"] == {"string": "enp68s0v1"}
        network = device["networkData"]
        assert network["interfaceName"] == "enp68s0v1"
        assert network["hardwareAddress"] == mac
        (address,) = network["ips"]
        assert address.startswith("fe80::")
        assert address.endswith("/64")


def test_a_link_on_a_shared_card_is_known_once_it_is_made(tmp_path: Path) -> None:
    card = "nic-0000-44-00-0"
    with machine(tmp_path, nicMode="shares") as made:
        ref = made.claim("a", card, bandwidth="1G")
        made.prepare(ref, "nic")
        (link,) = made.nic.nic(card).links().values()
        network = objects(made.metadata(ref, "nic", "r0"))[0]["requests"][0]["devices"][0]["networkData"]
        assert (network["interfaceName"], network["hardwareAddress"]) == ("net0", link["mac"])


def test_a_claim_that_took_the_place_of_another_keeps_its_file(node: Node) -> None:
    """A claim was deleted by force and made again, and its first pod is not unprepared yet."""
    first = node.claim("a", "lever-0", uid="uid-1")
    node.prepare(first)
    second = node.claim("a", "lever-1", uid="uid-2")
    node.prepare(second)
    assert node.unprepare(first) is None
    assert objects(files(node)["default_a/r"])[0]["metadata"]["uid"] == "uid-2"
    assert node.unprepare(second) is None
    assert files(node) == {}


def test_a_claim_that_fails_leaves_nothing(node: Node) -> None:
    node.fault("lever-0.fail")
    assert isinstance(node.prepare(node.claim("a", "lever-0")), str)
    (node.cdi).write_text("not a directory")
    node.fault("lever-0.fail").unlink()
    assert isinstance(node.prepare(node.claim("a", "lever-0")), str)
    assert files(node) == {}


def test_a_place_that_cannot_be_written_is_an_error_of_the_claim_and_undone(node: Node) -> None:
    node.kubelet.mkdir()
    (node.kubelet / "plugins").write_text("in the way")
    answer = node.prepare(node.claim("a", "lever-0"))
    assert isinstance(answer, str)
    assert "dra-device-metadata" in answer
    assert (node.pulled, node.specs, node.prepared) == ({}, {}, set())


def test_what_nobody_keeps_is_removed_at_the_start(node: Node) -> None:
    ref = node.claim("a", "lever-0")
    node.prepare(ref)
    own = files(node)["default_a/r"]
    root = own.parents[2]
    for name in (
        "default_gone/r/metadata.json",
        "default_a/gone/metadata.json",
        "default_a/r/.metadata.json.tmp",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    (root / "empty").mkdir()
    (root / "file").touch()
    again = node.restart()
    assert set(files(again)) == {"default_a/r"}
    assert again.unprepare(ref) is None
    assert files(again) == {}
    again.close()


def test_switched_off_nothing_is_written_or_mounted_and_what_was_is_removed_with_its_claim(
    node: Node,
) -> None:
    old, new = node.claim("a", "lever-0"), node.claim("b", "lever-1")
    node.prepare(old)
    again = node.restart(metadata=False)
    assert all(not device for device in mounts(again))
    assert not isinstance(again.prepare(new), str)
    assert set(files(again)) == {"default_a/r"}
    assert again.unprepare(old) is None
    assert files(again) == {}
    again.close()


def test_a_journal_that_is_lost_comes_back_without_the_mount_among_the_edits(node: Node) -> None:
    ref = node.claim("a", "lever-0", pod_claim="gpus")
    answer = node.prepare(ref)
    before, specs, content = node.journal.records(), node.specs, files(node)["default_a/r"].read_bytes()
    node.close()
    for file in node.state.parent.iterdir():
        file.unlink()
    again = node.restart()
    assert again.journal.records() == before
    assert again.specs == specs
    assert files(again)["default_a/r"].read_bytes() == content
    assert again.prepare(ref) == answer
    again.close()


def test_a_directory_of_another_version_is_no_trouble(tmp_path: Path) -> None:
    store = MetadataFiles(tmp_path)
    ref = ClaimRef("uid", "default", "a")
    store.remove(DRIVER, ref)
    store.reconcile([DRIVER], [])
    assert list(tmp_path.iterdir()) == []
