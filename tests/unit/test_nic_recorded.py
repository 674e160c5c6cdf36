"""The network cards of recorded machines: what their sysfs shows, whole or in part."""

import pytest

from dradriver.host import Host, read_pci
from dradriver.slices import Pool, pool_specs
from dradriver_nic import NicBackend
from nicnode import SysfsKernel, options_of
from recorded import dump_names, unpacked

NETWORK = 0x02


@pytest.mark.parametrize("name", dump_names())
def test_all_cards_of_a_recorded_machine_are_read(name: str) -> None:
    host = Host(unpacked(name))
    backend = NicBackend(host, options_of({"mode": "both"}), SysfsKernel(host))
    inventory = backend.probe()
    content = backend.devices(inventory)
    specs = pool_specs(Pool("nic.dradriver.io", "node", "node/nic"), content)
    assert not specs.left_out
    assert not specs.warnings
    pci = read_pci(host).by_address
    cards = {card.physical.address: card for card in inventory.cards if card.physical}
    network = {one.address: one for one in pci.values() if one.base_class == NETWORK}
    for address, one in network.items():
        if one.physfn in network:
            assert address not in cards
        else:
            assert cards[address].sriov_total == (one.sriov_total or 0)
            assert {function.address for function in cards[address].virtual} <= set(one.virtfns)
    for function in inventory.functions():
        one = pci[function.address]
        assert function.driver == (one.driver or "")
        assert function.place.get("resource.kubernetes.io/pcieRoot") == one.pcie_root
        assert function.place.get("dradriver.io/pcieSwitch") == one.pcie_switch
        assert function.place.get("resource.kubernetes.io/numaNode") == one.numa_node
        if function.link:
            assert function.link.name in one.net
        assert tuple(device.name for device in function.rdma) == one.infiniband
