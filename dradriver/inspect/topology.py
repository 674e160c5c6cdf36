"""The node as a tree: sockets, NUMA nodes, PCIe roots and switches, the devices that hang there, and who has them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dradriver.engine import DeviceRecord, Pool, Record
from dradriver.engine.ledger import capacity_prefix
from dradriver.engine.records import plan_prefix
from dradriver.host import CPUSet, HugePages, NUMANode, PCIDevice, PCIDevices, Topology
from dradriver.inspect.place import Place, place_of, place_of_function
from dradriver.model import Capacity, Device, Quantity

View = dict[str, Any]
_Use = tuple[Record, DeviceRecord]

_STORAGE, _NETWORK, _DISPLAY, _COPROCESSOR, _ACCELERATOR = 0x01, 0x02, 0x03, 0x0B, 0x12
_SHOWN = {_STORAGE, _NETWORK, _DISPLAY, _COPROCESSOR, _ACCELERATOR}
_BRIDGE = 0x06


@dataclass(slots=True)
class _Functions:
    """PCI functions below one host bridge or switch: those that are shown, and how many are not."""

    shown: dict[str, View] = field(default_factory=dict)
    others: int = 0


@dataclass(slots=True)
class _Root:
    devices: list[View] = field(default_factory=list)
    direct: _Functions = field(default_factory=_Functions)
    switches: dict[str, _Functions] = field(default_factory=dict)


@dataclass(slots=True)
class _Spot:
    """What hangs at one NUMA node, or at none."""

    socket: int | None = None
    devices: list[View] = field(default_factory=list)
    roots: dict[str | None, _Root] = field(default_factory=dict)


def topology_view(
    topology: Topology,
    pci: PCIDevices,
    pools: Sequence[Pool],
    records: Sequence[Record],
    *,
    everything: bool = False,
) -> View:
    """Return the tree as plain JSON types. docs/inspect.md shows one.

    everything   list every PCI function, instead of counting those that claims are hardly ever about
    """
    spots: dict[int | None, _Spot] = {}
    sockets: dict[int, list[View]] = {}
    claimed = _claimed(records)
    offered = [(pool, device) for pool in pools for device in pool.snapshot.content.devices]
    places = [place_of(device, pci.by_address) for _, device in offered]
    wanted = {place.address for place in places if place.address}
    for function in pci.by_address.values():
        if everything or function.base_class != _BRIDGE or function.address in wanted:
            _hang_function(spots, function, function.address in wanted or everything)
    for (pool, device), place in zip(offered, places, strict=True):
        view = _device_view(pool, device, claimed.pop((pool.name, device.name), ()))
        _hang_device(spots, sockets, view, place)
    unknown = spots.pop(None, _Spot())
    return {
        "sockets": _sockets(topology, spots, sockets),
        "elsewhere": {"devices": unknown.devices, "pcieRoots": _roots_view(unknown.roots)},
        "missing": [
            {"pool": pool, "device": name, "claims": _claims_view(claims)}
            for (pool, name), claims in claimed.items()
        ],
        "notes": _notes(topology, pci, pools),
    }


def _notes(topology: Topology, pci: PCIDevices, pools: Sequence[Pool]) -> list[str]:
    notes = [*topology.notes, *pci.notes]
    for pool in pools:
        content = pool.snapshot.content
        more = [note for note in content.notes if note not in topology.notes]
        texts = (*more, *content.warnings, pool.snapshot.error)
        notes += [f"pool {pool.name}: {text}" for text in texts if text]
    return notes


def _claimed(records: Sequence[Record]) -> dict[tuple[str, str], Sequence[_Use]]:
    found: dict[tuple[str, str], list[_Use]] = {}
    for record in records:
        for device in record.devices:
            key = (device.allocated.pool, device.allocated.device)
            found.setdefault(key, []).append((record, device))
    return dict(found)


def _device_view(pool: Pool, device: Device, uses: Sequence[_Use]) -> View:
    return {
        "name": device.name,
        "driver": pool.driver,
        "pool": pool.name,
        "health": device.health.value,
        **({"healthMessage": device.health_message} if device.health_message else {}),
        "shared": device.shared,
        "capacity": {
            name: {"value": str(one.value), "allocated": str(_taken(device, name, one, uses))}
            for name, one in device.capacity.items()
        },
        "claims": _claims_view(uses),
    }


def _taken(device: Device, name: str, capacity: Capacity, uses: Sequence[_Use]) -> Quantity:
    """Return how much of a capacity the claims hold together; who only looks (admin access) holds nothing."""
    nothing = Quantity(0, capacity.value.format)
    owners = [(record, used) for record, used in uses if not used.allocated.admin]
    if not device.shared:
        return capacity.value if owners else nothing
    units = {f"{capacity_prefix(used.allocated)}{name}" for _, used in owners}
    records = {record.ref.uid: record for record, _ in owners}.values()
    held = (hold.amount for record in records for hold in record.holds if hold.unit in units)
    return sum(held, nothing)


def _claims_view(uses: Sequence[_Use]) -> list[View]:
    return [
        {
            "namespace": record.ref.namespace,
            "name": record.ref.name,
            "uid": record.ref.uid,
            "state": record.state.value,
            "request": used.allocated.request,
            "adminAccess": used.allocated.admin,
            "consumed": {name: str(amount) for name, amount in used.allocated.consumed.items()},
            "holds": _holds(record, used),
        }
        for record, used in uses
    ]


def _holds(record: Record, used: DeviceRecord) -> list[str]:
    """Return the things below devices, such as single CPUs, that the claim holds of the device's backend."""
    prefix = plan_prefix(used.backend)
    names = [hold.unit.removeprefix(prefix) for hold in record.holds if hold.unit.startswith(prefix)]
    return sorted(names, key=lambda name: (len(name), name))


def _hang_function(spots: dict[int | None, _Spot], function: PCIDevice, wanted: bool) -> None:
    place = place_of_function(function)
    found = _functions_at(spots, place)
    virtual = function.physfn is not None
    if wanted or (function.base_class in _SHOWN and not virtual):
        found.shown[function.address] = _function_view(function)
    else:
        found.others += 1


def _functions_at(spots: dict[int | None, _Spot], place: Place) -> _Functions:
    root = spots.setdefault(place.numa_node, _Spot()).roots.setdefault(place.root, _Root())
    return root.switches.setdefault(place.switch, _Functions()) if place.switch else root.direct


def _function_view(function: PCIDevice) -> View:
    link = function.current_link
    facts = {
        "class": None if function.class_code is None else f"0x{function.class_code:06x}",
        "vendor": None if function.vendor is None else f"0x{function.vendor:04x}",
        "device": None if function.device is None else f"0x{function.device:04x}",
        "driver": function.driver,
        "physicalFunction": function.physfn,
        "virtualFunctions": len(function.virtfns) or None,
        "linkSpeed": link.speed,
        "linkWidth": link.width,
        "net": list(function.net) or None,
        "infiniband": list(function.infiniband) or None,
    }
    return {
        "address": function.address,
        **{name: value for name, value in facts.items() if value is not None},
        "devices": [],
    }


def _hang_device(
    spots: dict[int | None, _Spot], sockets: dict[int, list[View]], view: View, place: Place
) -> None:
    if place.address:
        functions = _functions_at(spots, place).shown
        functions.setdefault(place.address, {"address": place.address, "devices": []})["devices"].append(view)
    elif place.root:
        spots.setdefault(place.numa_node, _Spot()).roots.setdefault(place.root, _Root()).devices.append(view)
    elif place.numa_node is None and place.socket is not None:
        sockets.setdefault(place.socket, []).append(view)
    else:
        spots.setdefault(place.numa_node, _Spot()).devices.append(view)
    if place.numa_node is not None and place.socket is not None:
        spots[place.numa_node].socket = place.socket


def _sockets(
    topology: Topology,
    spots: Mapping[int | None, _Spot],
    sockets: Mapping[int, list[View]],
) -> list[View]:
    """Return the sockets with their NUMA nodes; one without an id holds those of no socket, or of several."""
    nodes: dict[int | None, list[View]] = {}
    for view, cpus in _numa_nodes(topology):
        spot = spots.get(view["id"]) if view["id"] is not None else None
        socket = topology.socket_of(cpus)
        nodes.setdefault(spot.socket if socket is None and spot else socket, []).append(_hung(view, spot))
    known = {node.id for node in topology.nodes}
    for number, spot in spots.items():
        if number is not None and number not in known:
            nodes.setdefault(spot.socket, []).append(_hung({"id": number, "cpus": ""}, spot))
    packages = {topology.socket_of(cpus): cpus for cpus in topology.packages}
    ids = sorted({number for number in (*packages, *nodes, *sockets) if number is not None})
    views: list[View] = [
        {
            "id": number,
            "cpus": str(packages.get(number, CPUSet())),
            "devices": sockets.get(number, []),
            "numaNodes": nodes.get(number, []),
        }
        for number in ids
    ]
    if None in nodes:
        views.append({"id": None, "cpus": "", "devices": [], "numaNodes": nodes[None]})
    return views


def _hung(view: View, spot: _Spot | None) -> View:
    spot = spot or _Spot()
    return {**view, "devices": spot.devices, "pcieRoots": _roots_view(spot.roots)}


def _roots_view(roots: Mapping[str | None, _Root]) -> list[View]:
    return [
        {
            "name": name,
            "devices": root.devices,
            "functions": _ordered(root.direct),
            "otherFunctions": root.direct.others,
            "switches": [
                {"address": address, "functions": _ordered(below), "otherFunctions": below.others}
                for address, below in sorted(root.switches.items())
            ],
        }
        for name, root in sorted(roots.items(), key=lambda item: item[0] or "~")
    ]


def _ordered(functions: _Functions) -> list[View]:
    return [functions.shown[address] for address in sorted(functions.shown)]


def _numa_nodes(topology: Topology) -> list[tuple[View, CPUSet]]:
    """Return the NUMA nodes, and one without an id for CPUs of which none is known."""
    found = []
    for node in topology.nodes:
        cpus = node.cpus if topology.numa_consistent else CPUSet()
        found.append(({"id": node.id, **_cpus_view(topology, cpus), **_memory_view(node, topology)}, cpus))
    for locality in topology.localities:
        if locality.node_id is None:
            view: View = {"id": None, **_cpus_view(topology, locality.cpus)}
            if not topology.nodes:
                view |= {
                    "memoryBytes": topology.memory.total_bytes,
                    "hugePages": _huge_pages(topology.memory.huge_pages),
                }
            found.append((view, locality.cpus))
    return found


def _cpus_view(topology: Topology, cpus: CPUSet) -> View:
    kinds: dict[str, int] = {}
    cores = [core for core in topology.cores if core <= cpus] if cpus else []
    for core in cores:
        kind = topology.cpus[core.first].core_kind
        if kind:
            kinds[kind] = kinds.get(kind, 0) + 1
    last = max((cache.level for cache in topology.caches), default=0)
    return {
        "cpus": str(cpus),
        "cores": len(cores),
        **({"coreKinds": kinds} if kinds else {}),
        "lastLevelCaches": [
            {"level": cache.level, "sizeBytes": cache.size_bytes, "cpus": str(cache.cpus)}
            for cache in topology.caches
            if cache.level == last and last > 1 and not cache.cpus.isdisjoint(cpus)
        ],
    }


def _memory_view(node: NUMANode, topology: Topology) -> View:
    near = {str(other): distance for other, distance in node.distances.items() if topology.numa_consistent}
    return {
        "memoryBytes": node.memory_bytes,
        **({"memoryOfGPU": node.gpu} if node.gpu else {}),
        "hugePages": _huge_pages(node.huge_pages),
        "distances": near,
    }


def _huge_pages(pools: Iterable[HugePages]) -> list[View]:
    return [
        {"sizeBytes": pool.size_bytes, "total": pool.total, "free": pool.free} for pool in pools if pool.total
    ]
