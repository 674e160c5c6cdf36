"""Nodes with NVIDIA GPUs as facts for the stub NVML library: A100 to GB200, T4, L4.

Sources of the numbers: public listings of nvidia-smi for MIG geometry (dradriver_fake's table of boards), public
reports for addresses and NUMA nodes (DGX A100, DGX H100, HGX H200, GB200 trays). UUIDs, serial numbers, firmware
versions, reserved memory and BAR1 sizes are made up in the form that they have.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dradriver_fake.boards import Board, boards
from nvmlfacts import ComputeProfile, Gpu, Node, Profile, Value, under_driver

MIB = 1 << 20
_NAMESPACE = uuid.UUID("0f4b9d2e-6d1c-5a57-9f0b-0c9b6b0f6d11")

TURING, AMPERE, ADA, HOPPER, BLACKWELL = 6, 7, 8, 9, 10


# --- MIG geometry


def _index_of(name: str, slices: int, size: int) -> int:
    """Return the number under which NVML knows a profile: by its slices, media engines, or twice the memory."""
    if name.endswith("+me"):
        return {1: 7, 2: 8}[slices]
    if slices == 1 and size == 2:
        return 9
    return {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[slices]


def _profiles_of(board: Board) -> tuple[Profile, ...]:
    return tuple(
        Profile(
            index=_index_of(profile.name, profile.compute_slices, profile.size),
            id=profile.id,
            name=f"MIG {profile.name}",
            slices=profile.compute_slices,
            instances=profile.max_instances,
            multiprocessors=profile.multiprocessors,
            copy_engines=profile.copy_engines,
            decoders=profile.decoders,
            encoders=profile.encoders,
            jpegs=profile.jpeg_engines,
            ofas=profile.ofa_engines,
            memory_mib=profile.memory_mib,
            size=profile.size,
            starts=profile.starts,
        )
        for profile in board.profiles
    )


_COMPUTE_SIZES = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 7: (1, 2, 3, 4, 7)}


def _compute_profiles_of(profiles: Sequence[Profile]) -> Iterable[ComputeProfile]:
    """Yield what fits into GPU instances of each profile, with the slices' multiprocessors.

    A profile of one slice with twice the memory can have more multiprocessors than a slice (H100: 26, 16). Then the
    plain compute instance has the slice's, and one of its own kind (REV1, 7) spans the GPU instance.
    """
    plain = {profile.slices: profile.multiprocessors for profile in profiles if profile.index <= 4}
    for profile in profiles:
        short = profile.name.removeprefix("MIG ")
        for slices in _COMPUTE_SIZES[profile.slices]:
            whole = slices == profile.slices
            wider = whole and slices == 1 and profile.multiprocessors > plain[1]
            step = {3: 4}.get(slices, slices)
            yield ComputeProfile(
                gpu_profile=profile.id,
                index=(index := {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[slices]),
                id=index,
                name=f"MIG {short}" if whole and not wider else f"MIG {slices}c.{short}",
                slices=slices,
                instances=profile.slices // slices,
                multiprocessors=profile.multiprocessors if whole and not wider else plain[slices],
                starts=tuple(range(0, profile.slices - slices + 1, step)),
            )
            if wider:
                yield ComputeProfile(profile.id, 7, 7, f"MIG {short}", 1, 1, profile.multiprocessors, (0,))


# --- boards


@dataclass(frozen=True, slots=True)
class _Kind:
    """A board: the name in the table of boards, or none without MIG, and the facts of every GPU of the kind."""

    board: str
    facts: Mapping[str, Value]
    nvlinks: int = 0


def _kind(
    board: str, name: str, device: int, architecture: int, capability: str, memory_mib: int, **facts: Value
) -> _Kind:
    common: dict[str, Value] = {
        "name": name,
        "pci-device": f"0x{device:04x}10de",
        "architecture": architecture,
        "compute-capability": capability,
        "brand": 14,
        "memory-total": memory_mib * MIB,
        "bus-type": 2,
        "multi-gpu-board": 0,
        "virtualization-mode": 0,
        "display-mode": 1,
        "display-active": 0,
        "ecc-mode": 1,
        "ecc-mode-default": 1,
        "ecc-corrected": 0,
        "ecc-uncorrected": 0,
        "ecc-corrected-aggregate": 0,
        "ecc-uncorrected-aggregate": 0,
        "temperature": 34,
        "performance-state": 0,
        "power-management": 1,
        "pcie-replays": 0,
        "pcie-width": 16,
        "pcie-max-width": 16,
        "recovery-action": 0,
        "channel-repair-pending": 0,
        "tpc-repair-pending": 0,
        "addressing-mode": 1,
        "gsp-default": 1,
        "irq": 120,
    }
    if architecture >= AMPERE:
        common |= {"rows-corrected": 0, "rows-uncorrected": 0, "rows-pending": 0, "rows-failure": 0}
        common |= {"gsp-enabled": 1, "sram-threshold-exceeded": 0, "unrepairable-memory": 0}
    else:
        common |= {"retired-single-bit": 0, "retired-double-bit": 0, "retired-pending": 0, "gsp-enabled": 0}
    if architecture == AMPERE and board:
        common |= {"mig-activation": 16, "mig-without-reset": 0, "mig-query-always": 1}
    elif board:
        common |= {"mig-without-reset": 1, "mig-query-always": 1}
    for limit in ("power-limit", "power-default-limit", "power-max-limit"):
        common[limit] = int(facts["power"]) * 1000
    common["power-min-limit"] = int(facts["power"]) * 500
    common["power-usage"] = int(facts["power"]) * 100
    common |= {
        key.replace("_", "-"): value for key, value in facts.items() if key not in {"power", "nvlinks"}
    }
    return _Kind(board, common, int(facts.get("nvlinks", 0)))


_SXM4 = {"pcie_generation": 4, "pcie_max_generation": 4, "pcie_speed": 16000, "memory_bus_width": 5120}
_SXM = {"pcie_generation": 5, "pcie_max_generation": 5, "pcie_speed": 32000, "memory_bus_width": 5120}

_A100_40 = _kind(
    "A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", 0x20B0, AMPERE, "8.0", 40960, power=400, cores=6912,
    vbios="92.00.45.00.03", board_part="699-2G506-0202-500", pci_subsystem="0x134f10de", bar1_total=65536 * MIB,
    memory_reserved=605 * MIB, nvlinks=12, nvlink_version=4, **_SXM4,
)  # fmt: skip
_A100_80 = _kind(
    "A100-80GB", "NVIDIA A100-SXM4-80GB", 0x20B2, AMPERE, "8.0", 81920, power=400, cores=6912,
    vbios="92.00.9E.00.01", board_part="699-2G506-0212-320", pci_subsystem="0x147f10de", bar1_total=131072 * MIB,
    memory_reserved=633 * MIB, nvlinks=12, nvlink_version=4, **_SXM4,
)  # fmt: skip
_A30 = _kind(
    "A30", "NVIDIA A30", 0x20B7, AMPERE, "8.0", 24576, power=165, cores=3584, vbios="92.00.66.00.08",
    board_part="900-21001-0040-000", pci_subsystem="0x153210de", bar1_total=32768 * MIB, memory_reserved=514 * MIB,
    pcie_generation=4, pcie_max_generation=4, pcie_speed=16000, memory_bus_width=3072,
)  # fmt: skip
_H100 = _kind(
    "H100-SXM5-80GB", "NVIDIA H100 80GB HBM3", 0x2330, HOPPER, "9.0", 81559, power=700, cores=16896,
    vbios="96.00.61.00.01", board_part="692-2G520-0200-000", pci_subsystem="0x16c110de", bar1_total=131072 * MIB,
    memory_reserved=551 * MIB, nvlinks=18, nvlink_version=6, **_SXM,
)  # fmt: skip
_H200 = _kind(
    "H200-SXM-141GB", "NVIDIA H200", 0x2335, HOPPER, "9.0", 143771, power=700, cores=16896, vbios="96.00.A5.00.01",
    board_part="692-2G520-0280-501", pci_subsystem="0x18be10de", bar1_total=262144 * MIB, memory_reserved=613 * MIB,
    nvlinks=18, nvlink_version=6, **_SXM,
)  # fmt: skip
_B200 = _kind(
    "B200-180GB", "NVIDIA B200", 0x2901, BLACKWELL, "10.0", 183359, power=1000, cores=18944, vbios="97.00.82.00.2D",
    board_part="692-2G525-0220-501", pci_subsystem="0x199910de", bar1_total=262144 * MIB, memory_reserved=630 * MIB,
    nvlinks=18, nvlink_version=7, **_SXM,
)  # fmt: skip
_GB200 = _kind(
    "GB200", "NVIDIA GB200", 0x2941, BLACKWELL, "10.0", 189471, power=1200, cores=19456, vbios="97.00.88.00.0F",
    board_part="699-2G548-1201-800", pci_subsystem="0x204610de", bar1_total=262144 * MIB, memory_reserved=620 * MIB,
    nvlinks=18, nvlink_version=7, c2c_enabled=1, capabilities=1, chassis_serial="1820325191003", chassis_slot=21,
    peer_type=1, host_id=1, **{**_SXM, "addressing_mode": 2},
)  # fmt: skip
_T4 = _kind(
    "", "Tesla T4", 0x1EB8, TURING, "7.5", 15360, power=70, cores=2560, vbios="90.04.96.00.02",
    board_part="900-2G183-0000-001", pci_subsystem="0x12a210de", bar1_total=256 * MIB, memory_reserved=449 * MIB,
    pcie_generation=3, pcie_max_generation=3, pcie_speed=8000, memory_bus_width=256,
)  # fmt: skip
_L4 = _kind(
    "", "NVIDIA L4", 0x27B8, ADA, "8.9", 23034, power=72, cores=7424, vbios="95.04.29.00.06",
    board_part="900-2G193-0000-001", pci_subsystem="0x16ca10de", bar1_total=32768 * MIB, memory_reserved=551 * MIB,
    pcie_generation=4, pcie_max_generation=4, pcie_speed=16000, memory_bus_width=192,
)  # fmt: skip
_L40S = _kind(
    "", "NVIDIA L40S", 0x26B9, ADA, "8.9", 46068, power=350, cores=18176, vbios="95.02.66.00.02",
    board_part="900-2G133-0080-000", pci_subsystem="0x185110de", bar1_total=65536 * MIB, memory_reserved=668 * MIB,
    pcie_generation=4, pcie_max_generation=4, pcie_speed=16000, memory_bus_width=384,
)  # fmt: skip


# --- nodes


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a GPU stands: address, NUMA node, CPUs there, bridges from the root complex on."""

    bus_id: str
    numa: int
    cpus: str
    path: str = ""


def _cards(text: str) -> Iterable[tuple[str, int, str]]:
    """Yield bus, NUMA node and bus of the root complex of cards written as `BUS:NODE:ROOT`."""
    for card in text.split():
        bus, numa, root = card.split(":")
        yield bus, int(numa), root


def _a100_places() -> list[_Place]:
    cards = "07:3:00 0f:3:00 47:1:40 4e:1:40 87:7:80 90:7:80 b7:5:b0 bd:5:b0"
    return [
        _Place(
            f"0000:{bus}:00.0",
            numa,
            f"{16 * numa}-{16 * numa + 15},{128 + 16 * numa}-{143 + 16 * numa}",
            f"pci0000:{root}/0000:{root}:01.1/0000:{int(root, 16) + 1:02x}:00.0",
        )
        for bus, numa, root in _cards(cards)
    ]


def _hopper_places() -> list[_Place]:
    halves = ("0-55,112-167", "56-111,168-223")
    cards = "1b:0:15 43:0:3d 52:0:4c 61:0:5b 9d:1:97 c3:1:bd d1:1:cb df:1:d9"
    return [
        _Place(f"0000:{bus}:00.0", numa, halves[numa], f"pci0000:{root}/0000:{root}:01.0")
        for bus, numa, root in _cards(cards)
    ]


def _h200_places() -> list[_Place]:
    cards = "18:0:15 2a:0:26 3a:0:37 5d:1:59 9a:2:97 ab:2:a7 ba:2:b7 db:3:d7"
    return [
        _Place(
            f"0000:{bus}:00.0",
            numa,
            f"{24 * numa}-{24 * numa + 23},{96 + 24 * numa}-{119 + 24 * numa}",
            f"pci0000:{root}/0000:{root}:01.0",
        )
        for bus, numa, root in _cards(cards)
    ]


def _grace_places(count: int) -> list[_Place]:
    """Return places with a PCI domain of their own: 0008, 0009, 0018, 0019 on a tray, and so on beyond."""
    domains = [0x08 + 0x10 * (index // 2) + index % 2 for index in range(count)]
    return [
        _Place(
            f"{domain:04x}:01:00.0",
            index // 2,
            f"{72 * (index // 2)}-{72 * (index // 2) + 71}",
            f"pci{domain:04x}:00/{domain:04x}:00:00.0",
        )
        for index, domain in enumerate(domains)
    ]


def _slot_places(count: int) -> list[_Place]:
    """Return places of cards in slots of a server with two sockets."""
    buses = ("16", "38", "82", "ac", "1a", "3c", "86", "b0")
    return [
        _Place(
            f"0000:{bus}:00.0",
            int(bus, 16) >> 7,
            ("0-27,56-83", "28-55,84-111")[int(bus, 16) >> 7],
            f"pci0000:{int(bus, 16) - 1:02x}/0000:{int(bus, 16) - 1:02x}:01.0",
        )
        for bus in buses[:count]
    ]


def _made_up(*parts: object) -> uuid.UUID:
    return uuid.uuid5(_NAMESPACE, "/".join(map(str, parts)))


def _gpu(node: str, kind: _Kind, slot: int, place: _Place) -> Gpu:
    board = next((board for board in boards() if board.board == kind.board), None)
    profiles = _profiles_of(board) if board is not None else ()
    identity = _made_up(node, slot)
    facts: dict[str, Value] = {
        **kind.facts,
        "uuid": f"GPU-{identity}",
        "bus-id": place.bus_id,
        "minor": slot,
        "serial": f"16504{identity.int % 10**8:08d}",
        "board-id": int(place.bus_id[:4], 16) << 16 | int(place.bus_id[5:7], 16) << 8,
        "numa-node": place.numa,
        "cpus": place.cpus,
        "pci-path": place.path,
        "pdi": identity.int >> 65,
    }
    if kind.nvlinks:
        facts["module-id"] = slot % 8 + 1
    return Gpu(slot, facts, profiles, tuple(_compute_profiles_of(profiles)), nvlinks=kind.nvlinks)


def _node(name: str, kind: _Kind, places: Sequence[_Place], driver: str) -> Node:
    gpus = (_gpu(name, kind, slot, place) for slot, place in enumerate(places))
    return under_driver(Node(driver, tuple(gpus)), driver)


DRIVER = "580.65.06"


def a100_40(count: int = 8, driver: str = DRIVER) -> Node:
    """Return a DGX A100 with 40 GB GPUs."""
    return _node("dgx-a100", _A100_40, _a100_places()[:count], driver)


def a100_80(count: int = 8, driver: str = DRIVER) -> Node:
    """Return a DGX A100 with 80 GB GPUs."""
    return _node("dgx-a100-80", _A100_80, _a100_places()[:count], driver)


def a30(count: int = 2, driver: str = DRIVER) -> Node:
    """Return a server with A30 cards, whose MIG geometry has four slices."""
    return _node("a30-server", _A30, _slot_places(count), driver)


def h100(count: int = 8, driver: str = DRIVER) -> Node:
    """Return a DGX H100."""
    return _node("dgx-h100", _H100, _hopper_places()[:count], driver).each(
        fabric_state=3, fabric_status=0, fabric_clique=0, fabric_cluster="0" * 32
    )


def h200(count: int = 8, driver: str = DRIVER) -> Node:
    """Return an HGX H200."""
    return _node("hgx-h200", _H200, _h200_places()[:count], driver).each(
        fabric_state=3, fabric_status=0, fabric_clique=0, fabric_cluster="0" * 32
    )


def b200(count: int = 8, driver: str = DRIVER) -> Node:
    """Return a DGX B200."""
    return _node("dgx-b200", _B200, _hopper_places()[:count], driver).each(
        fabric_state=3, fabric_status=0, fabric_clique=0, fabric_cluster="0" * 32
    )


def gb200(count: int = 16, driver: str = DRIVER) -> Node:
    """Return GB200 GPUs, four to a tray: a PCI domain each, their memory as NUMA nodes, in one NVLink domain."""
    cluster = _made_up("nvlink-domain")
    node = _node("gb200", _GB200, _grace_places(count), driver).each(
        fabric_state=3, fabric_status=0, fabric_clique=1, fabric_cluster=str(cluster), fabric_health_summary=1
    )
    sockets = max(count // 2, 1)
    memory = (gpu.having(memory_numa_node=sockets + 8 * gpu.slot, tray=gpu.slot // 4) for gpu in node.gpus)
    return replace(node, gpus=tuple(memory))


def t4(count: int = 4, driver: str = DRIVER) -> Node:
    """Return a server with T4 cards: no MIG, no NVLink, retired pages instead of remapped rows."""
    return _node("t4-server", _T4, _slot_places(count), driver)


def l4(count: int = 4, driver: str = DRIVER) -> Node:
    """Return a server with L4 cards: no MIG."""
    return _node("l4-server", _L4, _slot_places(count), driver)


def l40s(count: int = 4, driver: str = DRIVER) -> Node:
    """Return a server with L40S cards: no MIG."""
    return _node("l40s-server", _L40S, _slot_places(count), driver)


def mixed(*nodes: Node) -> Node:
    """Return one node with the GPUs of several, which must not share addresses."""
    gpus = tuple(gpu for node in nodes for gpu in node.gpus)
    if len({gpu.bus_id for gpu in gpus}) != len(gpus):
        msg = "two GPUs at one address"
        raise ValueError(msg)
    return Node(
        nodes[0].driver, tuple(replace(gpu, slot=slot).having(minor=slot) for slot, gpu in enumerate(gpus))
    )
