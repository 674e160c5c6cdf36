"""What a claim's status says of its devices keeps every limit of the API, and says what it leaves out."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apirules import update
from dradriver.backend import Phase
from dradriver.claims import network_body
from dradriver.claims.network import canonical_address
from dradriver.claimstatus import device_statuses
from dradriver.claimstatus.devices import digest, is_told
from dradriver.engine import DeviceRecord, Record, State
from dradriver.engine.records import SandboxRecord, StepRecord, StepState
from dradriver.model import Allocated, ClaimRef, NetworkData
from dradriver.sim.apiserver.rules import Gates
from recorded import SHARED

VECTORS = SHARED / "vectors/validation/vectors.json"
PLACE = "status/devices/networkData/ip/"


def device(name: str = "d0", **fields: Any) -> DeviceRecord:
    allocated = Allocated("r", "x.example.com", "n1/x", name, share_id=fields.pop("share_id", None))
    return DeviceRecord("x", allocated, **fields)


def record(*devices: DeviceRecord, created: float = 1767323045.9) -> Record:
    ref = ClaimRef("uid", "default", "a")
    return Record("x.example.com", ref, State.PREPARED, "boot", created, devices)


def entry(*devices: DeviceRecord) -> Mapping[str, Any]:
    (found,) = device_statuses([record(*devices)]).entries
    return found


def test_an_entry_says_what_the_plan_knows_as_plain_values() -> None:
    network = NetworkData("net1", ("10.9.8.7/24",), "02:00:5e:10:00:01")
    metadata = {
        "cpus": {"string": "0-3,8"},
        "numa": {"int": 1},
        "whole": {"bool": True},
        "firmware": {"version": "1.2.3"},
        "nodes": {"ints": [0, 1]},
    }
    share = "3b2f0c8e-6c1d-4f52-9a77-0d1e2f3a4b5c"
    assert entry(device(share_id=share, metadata=metadata, network=network)) == {
        "driver": "x.example.com",
        "pool": "n1/x",
        "device": "d0",
        "shareID": share,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Prepared",
                "message": "",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
            }
        ],
        "data": {"cpus": "0-3,8", "numa": 1, "whole": True, "firmware": "1.2.3", "nodes": [0, 1]},
        "networkData": {
            "interfaceName": "net1",
            "hardwareAddress": "02:00:5e:10:00:01",
            "ips": ["10.9.8.7/24"],
        },
    }
    assert {"data", "networkData", "shareID"}.isdisjoint(entry(device()))


STEP = StepRecord("x", "Move", Phase.SANDBOX, {})


@pytest.mark.parametrize(
    ("states", "since", "expected"),
    [
        ((StepState.APPLIED,), 1767323105.5, ("True", "InSandbox", "2026-01-02T03:05:05Z")),
        ((StepState.PLANNED,), 0.0, ("False", "WaitingForSandbox", "2026-01-02T03:04:05Z")),
        (
            (StepState.APPLIED, StepState.APPLYING),
            1767323105.5,
            ("False", "WaitingForSandbox", "2026-01-02T03:05:05Z"),
        ),
    ],
)
def test_what_goes_into_a_pod_is_ready_there_only(
    states: tuple[StepState, ...], since: float, expected: tuple[str, str, str]
) -> None:
    made = replace(
        record(device(network=NetworkData("net1"))),
        steps=tuple(replace(STEP, state=state) for state in states),
        sandbox=SandboxRecord(since=since),
    )
    (found,) = device_statuses([made]).entries
    (condition,) = found["conditions"]
    assert (condition["status"], condition["reason"], condition["lastTransitionTime"]) == expected
    assert ("networkData" in found) == (expected[0] == "True"), "nobody is to send there before"
    assert bool(condition["message"]) == (expected[0] == "False")


def test_a_device_that_was_allocated_twice_has_one_entry() -> None:
    statuses = device_statuses([record(device(), device("d1"), device())])
    assert [found["device"] for found in statuses.entries] == ["d0", "d1"]


def test_parts_of_several_drivers_are_one_list() -> None:
    other = replace(
        record(), driver="y", devices=(replace(device(), allocated=Allocated("r", "y", "n1/y", "d0")),)
    )
    statuses = device_statuses([record(device()), other])
    assert [found["driver"] for found in statuses.entries] == ["x.example.com", "y"]


def test_data_that_is_too_large_loses_the_largest_first_and_says_so() -> None:
    metadata = {"cpus": {"string": "0"}, "huge": {"string": "<" * 3000}, "large": {"string": "x" * 9000}}
    statuses = device_statuses([record(device(metadata=metadata))])
    assert statuses.entries[0]["data"] == {"cpus": "0", "large": "x" * 9000}
    (fault,) = statuses.faults
    assert fault.startswith("device d0: data.'huge' is left out: all together have ")
    assert json.dumps(statuses.entries[0]["data"]).isascii()


def test_a_digest_differs_where_the_entries_do_and_nowhere_else() -> None:
    first = digest(device_statuses([record(device(metadata={"a": {"int": 1}, "b": {"int": 2}}))]).entries)
    assert (
        digest(device_statuses([record(device(metadata={"b": {"int": 2}, "a": {"int": 1}}))]).entries)
        == first
    )
    assert (
        digest(device_statuses([record(device(metadata={"a": {"int": 2}, "b": {"int": 2}}))]).entries)
        != first
    )
    assert digest(device_statuses([record(device(), created=1.0)]).entries) != digest([entry(device())])


def test_what_the_server_has_is_recognised_beside_what_others_said() -> None:
    ours = entry(device(metadata={"a": {"int": 1}}))
    foreign = {"driver": "other", "pool": "p", "device": "d0", "conditions": None}
    more = {**ours, "conditions": [{"type": "Attached", "status": "True"}, *ours["conditions"]]}
    assert is_told([ours], {"status": {"devices": [foreign, more]}})
    for stored in (
        [],
        [foreign],
        [{**ours, "data": {"a": 2}}],
        [{**ours, "conditions": None}],
        [{**ours, "shareID": "other"}],
        ["nonsense", None],
    ):
        assert not is_told([ours], {"status": {"devices": stored}}), stored
    nothing: tuple[object, ...] = ({}, {"status": {}}, {"status": {"devices": None}}, None, [], {"status": 7})
    for claim in nothing:
        assert not is_told([ours], claim)
        assert is_told([], claim)


def recorded_addresses() -> dict[str, bool]:
    """Return what a real server said to addresses: text -> whether it took it."""
    if not VECTORS.exists():
        pytest.skip(f"{VECTORS}: recorded answers not there")
    vectors = json.loads(VECTORS.read_text())["vectors"]
    found = {}
    for vector in vectors:
        if vector["name"].startswith(PLACE):
            (text,) = vector["object"]["status"]["devices"][0]["networkData"]["ips"]
            found[text] = vector["accepted"]
    return found


def test_addresses_are_as_a_real_server_takes_them() -> None:
    answers = recorded_addresses()
    assert len(answers) > 12
    for text, accepted in answers.items():
        try:
            canonical = canonical_address(text)
        except ValueError:
            assert not accepted, text
            continue
        assert (canonical == text) == accepted, text
        assert answers.get(canonical, True), canonical


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("::ffff:10.0.0.1/120", "10.0.0.1/24"),
        ("fe80::1%eth0/64", "fe80::1/64"),
        ("2001:DB8:0:0::1/64", "2001:db8::1/64"),
        ("10.9.8.7/024", "10.9.8.7/24"),
        ("10.9.8.7/32", "10.9.8.7/32"),
    ],
)
def test_an_address_in_another_spelling_is_brought_into_the_right_one(text: str, expected: str) -> None:
    assert canonical_address(text) == expected


@settings(deadline=None)
@given(
    st.text(),
    st.lists(st.text(max_size=40) | st.ip_addresses().map(lambda ip: f"{ip}/32"), max_size=40),
    st.text(),
)
def test_any_network_data_is_brought_within_the_limits(name: str, ips: list[str], hardware: str) -> None:
    body, faults = network_body(NetworkData(name * 3, tuple(ips), hardware * 2))
    assert len(body.get("interfaceName", "").encode()) <= 256
    assert len(body.get("hardwareAddress", "").encode()) <= 128
    addresses = body.get("ips", [])
    assert len(addresses) <= 16
    assert len(set(addresses)) == len(addresses)
    assert all(canonical_address(address) == address for address in addresses)
    assert all(fault.isprintable() and len(fault) < 1000 for fault in faults)


TEXT = st.text(max_size=400)
VALUES = st.one_of(
    TEXT.map(lambda text: {"string": text}),
    st.text(min_size=3000, max_size=6000).map(lambda text: {"string": text}),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: {"int": number}),
    st.booleans().map(lambda value: {"bool": value}),
    st.lists(TEXT, max_size=5).map(lambda items: {"strings": items}),
)
IPS = st.lists(TEXT | st.ip_addresses().map(lambda ip: f"{ip}/32"), max_size=20)
NETWORK = st.builds(NetworkData, TEXT, IPS.map(tuple), TEXT)


@settings(deadline=None, max_examples=40)
@given(metadata=st.dictionaries(TEXT, VALUES, max_size=6), network=st.none() | NETWORK, shared=st.booleans())
def test_whatever_a_plan_says_the_server_takes_it(
    metadata: dict[str, Any], network: NetworkData | None, shared: bool
) -> None:
    share = "3b2f0c8e-6c1d-4f52-9a77-0d1e2f3a4b5c" if shared else None
    statuses = device_statuses([record(device(share_id=share, metadata=metadata, network=network))])
    result = {"request": "r", "driver": "x.example.com", "pool": "n1/x", "device": "d0"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "a", "namespace": "default", "uid": "u", "resourceVersion": "1"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
        "status": {
            "allocation": {"devices": {"results": [result | ({"shareID": share} if share else {})]}},
        },
    }
    status = {**claim["status"], "devices": list(statuses.entries)}  # type: ignore[dict-item]
    sent = json.loads(json.dumps({**claim, "status": status}))
    stored = update("ResourceClaim", sent, claim, Gates.of("1.36"), "status").obj
    assert is_told(statuses.entries, stored)
    assert digest(stored["status"]["devices"]) == digest(statuses.entries)


def test_a_name_that_is_no_text_is_left_out() -> None:
    body, (fault,) = network_body(NetworkData("eth\udcff0", (), "02:00:00:00:00:01"))
    assert body == {"hardwareAddress": "02:00:00:00:00:01"}
    assert "is not Unicode text" in fault


def test_what_is_left_out_of_network_data_is_said() -> None:
    ips = ("nonsense", "10.0.0.1", *(f"10.0.1.{n}/24" for n in range(20)))
    statuses = device_statuses([record(device(network=NetworkData("n" * 257, ips, "h" * 129)))])
    assert statuses.entries[0]["networkData"] == {"ips": [f"10.0.1.{n}/24" for n in range(16)]}
    assert [fault.removeprefix("device d0: networkData.")[:30] for fault in statuses.faults] == [
        "interfaceName 'nnnnnnnnnnnnnnn",
        "hardwareAddress 'hhhhhhhhhhhhh",
        "ips: 'nonsense' is not an addr",
        "ips: '10.0.0.1' is not an addr",
        "ips: 20 addresses: at most 16 ",
    ]
