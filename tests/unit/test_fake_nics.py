"""Network cards of a fake node: virtual functions, physical ones, both, and shares of bandwidth."""

from pathlib import Path

from dradriver.model import Quantity
from fakenode import environment, machine

PF, VF = "nic-0000-44-00-0", "nic-0000-44-00-3"
UPLINK = "nic-0000-01-00-0"


def test_virtual_functions_are_offered_by_their_own_addresses_and_draw_on_no_counters(tmp_path: Path) -> None:
    with machine(tmp_path, "telco-edge") as made:
        content = made.pool("nic").snapshot.content
        devices = made.devices("nic")
        assert not content.counter_sets
        virtual = [device for device in devices.values() if device.attributes["isSriovVf"]]
        assert len(virtual) == 48
        assert len(devices) == 51, "and the second ports that have none, but for the uplink"
        assert "nic-0000-51-00-1" not in devices
        assert content.notes == (
            "ens2f1 (nic-0000-51-00-1) is not offered: the host's default route leads over it",
        )
        assert devices["nic-0000-51-01-7"].thing == "nic-0000-51-00-0"
        bound = devices["nic-0000-89-01-0"]
        assert bound.attributes["driver"] == "vfio-pci"
        assert "ifName" not in bound.attributes


def test_a_virtual_function_is_described_in_the_words_of_the_field(tmp_path: Path) -> None:
    with machine(tmp_path) as made:
        device = made.devices("nic")[VF]
        mac = device.attributes["mac"]
        assert isinstance(mac, str)
        assert mac.startswith("02:")
        assert device.attributes == {
            "ifName": "enp68s0v1",
            "mac": mac,
            "mtu": 1500,
            "rdma": True,
            "driver": "mlx5_core",
            "isSriovVf": True,
            "speed": 40_000,
            "resource.kubernetes.io/pcieRoot": "pci0000:40",
            "resource.kubernetes.io/pciBusID": "0000:44:00.3",
            "resource.kubernetes.io/numaNode": 0,
            "dradriver.io/pcieSwitch": "0000:41:00.0",
            "dradriver.io/socketID": 0,
        }
        gpu = made.devices("gpu")["gpu-0000-43-00-0"]
        assert gpu.attributes["dradriver.io/pcieSwitch"] == "0000:41:00.0"


def test_the_uplink_is_never_offered(tmp_path: Path) -> None:
    for mode in ("vf", "pf", "both", "shares"):
        with machine(tmp_path / mode, nicMode=mode) as made:
            assert UPLINK not in made.devices("nic")


def test_a_physical_function_and_its_virtual_ones_share_a_counter_where_both_are_offered(
    tmp_path: Path,
) -> None:
    with machine(tmp_path, nicMode="both") as made:
        content = made.pool("nic").snapshot.content
        (counter_set,) = content.counter_sets
        assert counter_set.name == PF
        assert counter_set.counters == {"vf": Quantity.from_int(16)}
        assert [device.name for device in content.devices][-1] == PF, "the physical one comes last"
        devices = made.devices("nic")
        assert devices[VF].consumes == {PF: {"vf": Quantity.from_int(1)}}
        assert devices[PF].consumes == {PF: {"vf": Quantity.from_int(16)}}
        assert devices[PF].attributes["sriovVfs"] == 4

        part = made.claim("part", VF)
        assert not isinstance(made.prepare(part, "nic"), str)
        whole = made.claim("whole", PF)
        answer = made.prepare(whole, "nic")
        assert isinstance(answer, str)
        assert "held by claim default/part (uid-part)" in answer
        assert made.unprepare(part, "nic") is None
        assert not isinstance(made.prepare(whole, "nic"), str)
        assert not made.complaints


def test_a_function_moves_into_the_pod_and_back(tmp_path: Path) -> None:
    with machine(tmp_path) as made:
        claim = made.claim("a", VF, "nic-0000-44-00-4")
        assert not isinstance(made.prepare(claim, "nic"), str)
        first, second = made.edits(claim, "nic")
        assert environment(first)["DRA_NIC_uid_a_0"] == "ifindex=100"
        assert environment(second)["DRA_NIC_uid_a_1"] == "ifindex=101"
        made.refresh()
        assert VF in made.devices("nic"), "what is in a pod stays published"
        again = made.restart()
        left = again.leftovers
        assert len(left) == 2
        assert again.unprepare(claim, "nic") is None
        assert not again.leftovers
        assert not again.complaints
        again.close()


def test_bandwidth_is_shared_until_there_is_none_left(tmp_path: Path) -> None:
    with machine(tmp_path, nicMode="pf", nicModes={PF: "shares"}) as made:
        device = made.devices("nic")[PF]
        assert device.shared
        assert str(device.capacity["bandwidth"].value) == "40G"
        claims = [made.claim(name, PF, bandwidth=amount) for name, amount in (("a", "25G"), ("b", "15G"))]
        for claim in claims:
            assert not isinstance(made.prepare(claim, "nic"), str)
        words = dict(
            word.split("=", 1)
            for word in environment(made.edits(claims[1], "nic")[0])["DRA_NIC_uid_b_0"].split(",")
        )
        (_, link) = made.nic.nic(PF).links().values()
        assert words == {"ifindex": "101", "mac": link["mac"], "bandwidth": "15000000000"}
        answer = made.prepare(made.claim("c", PF, bandwidth="1M"), "nic")
        assert isinstance(answer, str)
        assert "bandwidth of device nic-0000-44-00-0: 1M asked, 0 of 40G left" in answer
        whole = made.claim("whole", PF)
        assert "is held by claim" in str(made.prepare(whole, "nic"))
        for claim in claims:
            assert made.unprepare(claim, "nic") is None
        assert not made.leftovers
        assert not isinstance(made.prepare(whole, "nic"), str), "as a server without shares allocates it"
        (link,) = made.nic.nic(PF).links().values()
        assert link["bandwidth"] == 40 * 10**9
        assert "held by claim default/whole" in str(made.prepare(claims[0], "nic"))
        assert made.unprepare(whole, "nic") is None
        assert not made.leftovers
        assert not made.complaints
