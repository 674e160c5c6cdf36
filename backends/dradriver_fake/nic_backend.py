"""The backend `nic` of a fake node."""

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from dradriver.backend import (
    ContainerEdits,
    Plan,
    PlanError,
    PlannedDevice,
    Request,
    Requested,
    Step,
    UnavailableError,
)
from dradriver.model import AttributeValue, ClaimRef, NetworkData, Peer, PoolContent, shown
from dradriver.model.text import plain
from dradriver_fake.backend import FakeBackend
from dradriver_fake.facts import NICDevice, PCIFunction, VFDevice
from dradriver_fake.nic_devices import BANDWIDTH, Card, Function, NICInventory, content_of
from dradriver_fake.nic_hardware import NICHardware
from dradriver_fake.nic_steps import AddLink, MoveNIC
from dradriver_fake.targets import remarks_of
from dradriver_fake.tree_pci import interface_of


class FakeNicBackend(FakeBackend[NICInventory]):
    """Network cards of a fake node."""

    kind = "nic"
    serves = "network cards"
    step_types: ClassVar[tuple[type[Step[Any]], ...]] = (MoveNIC, AddLink)

    def nic(self, name: str) -> NICHardware:
        """Return a function of the node, on the bus or not. Raises UnavailableError where the node has none such."""
        facts = self.hardware.facts
        for function in facts.network:
            if function.name == name:
                return NICHardware(self.hardware, facts, function)
        raise UnavailableError(f"NIC {shown(name)} is none of this node")

    def is_plugged(self, names: Sequence[str]) -> bool:
        """Return whether the function is there."""
        return self.nic(names[0]).is_present

    def lose(self, name: str) -> None:
        """Let a function lose all that was done to it, and a physical one its virtual ones as well."""
        facts = self.hardware.facts
        for nic in facts.nics:
            if nic.name == name:
                for vf in facts.vfs:
                    if vf.vf.physfn == nic.bdf:
                        self.nic(vf.name).lose()
        self.nic(name).lose()

    def probe(self) -> NICInventory:
        """Read which functions are on the bus, and what the fault script says of them."""
        self.begin_probe()
        facts = self.hardware.facts
        options = self.hardware.options
        functions: dict[str, PCIFunction] = {function.bdf: function for function in facts.functions()}

        def seen(function: NICDevice | VFDevice, card: str) -> Function | None:
            if self.is_lost((function.name, card)):
                return None
            return Function(function, self.places.of(function), interface_of(function, functions))

        cards = []
        for nic in facts.nics:
            self.script.reach("probe", (nic.name,))
            mode = options.nic_modes.get(nic.name, options.nic_mode)
            virtual = [found for vf in facts.vfs if vf.vf.physfn == nic.bdf and (found := seen(vf, nic.name))]
            cards.append(Card(nic, mode, seen(nic, nic.name), tuple(virtual)))
        return NICInventory(tuple(cards), self.script.ailments(), remarks_of(self))

    def devices(self, inventory: NICInventory) -> PoolContent:
        """Offer physical functions, virtual ones, or shares."""
        return content_of(inventory)

    def plan(
        self, request: Request, inventory: NICInventory, held: Mapping[str, ClaimRef], peers: tuple[Peer, ...]
    ) -> Plan:
        """Move functions into the pod, and make links on shared ones."""
        cards = {function.name: card for card, function in inventory.functions()}
        devices, steps = [], []
        for requested in request.devices:
            name = requested.device.name
            if name not in cards:
                raise PlanError(f"device {shown(name)} is not on the bus")
            if not requested.allocated.admin:
                steps.append(_step(request, requested, cards[name].facts.name))
            devices.append(PlannedDevice(requested.allocated, ContainerEdits()))
        return Plan(tuple(devices), tuple(steps))

    def render(
        self,
        request: Request,
        plan: Plan,
        facts: tuple[Mapping[str, Any], ...],
        inventory: NICInventory,
    ) -> tuple[PlannedDevice, ...]:
        """Tell the container its interface: the index is known only since the function was moved, or the link made."""
        recorded: Iterator[Mapping[str, Any]] = iter(facts)
        functions = {function.name: function for _, function in inventory.functions()}
        rendered = []
        for requested in request.devices:
            edits, metadata = ContainerEdits(), dict[str, AttributeValue]()
            network: NetworkData | None = None
            if not requested.allocated.admin:
                known = next(recorded)
                uid = re.sub("[^A-Za-z0-9]", "_", request.claim.uid)
                words = [f"ifindex={known.get('id')}"]
                words += [f"{key}={known[key]}" for key in ("mac", BANDWIDTH) if key in known]
                edits = ContainerEdits(env=(f"DRA_NIC_{uid}_{requested.index}={','.join(words)}",))
                metadata |= {"mac": known["mac"]} if "mac" in known else {}
                network = _network(requested, functions.get(requested.device.name), known)
            rendered.append(PlannedDevice(requested.allocated, edits, metadata, network))
        return tuple(rendered)


def _network(requested: Requested, function: Function | None, known: Mapping[str, Any]) -> NetworkData | None:
    """Return the interface in the pod: a link is named by the device's number, a function keeps its name."""
    if "mac" in known:
        name, address = f"net{requested.index}", str(known["mac"])
    elif function and function.interface:
        name, address = function.interface.name, function.interface.mac
    else:
        return None
    return NetworkData(name, (_link_local(address),), address)


def _link_local(address: str) -> str:
    """Return the address that the kernel gives an interface by itself (RFC 4291, appendix A)."""
    given = bytes.fromhex(address.replace(":", ""))
    if len(given) == 6:
        given = bytes((given[0] ^ 2, *given[1:3], 0xFF, 0xFE, *given[3:]))
    return f"{ipaddress.IPv6Address(bytes((0xFE, 0x80, *[0] * 6, *given[-8:])))}/64"


def _step(request: Request, requested: Requested, card: str) -> Step[Any]:
    name = requested.device.name
    if not requested.device.shared:
        return MoveNIC(name, card, request.claim.uid, requested.index)
    capacity = requested.device.capacity[BANDWIDTH]
    amount = requested.allocated.consumed.get(BANDWIDTH)
    if amount is None and requested.allocated.share_id is not None and capacity.policy:
        amount = capacity.policy.default
    bandwidth = (capacity.value if amount is None else amount).to_int()
    if bandwidth < 1:
        raise PlanError(
            f"device {name}: {BANDWIDTH} {plain(str(amount), 64)} asked: more than nothing is expected"
        )
    return AddLink(name, card, request.claim.uid, requested.index, bandwidth)
