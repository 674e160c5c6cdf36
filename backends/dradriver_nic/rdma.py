"""RDMA devices, as sysfs shows them: which function they serve, and what programs open.

Files: kernel, Documentation/ABI/stable/sysfs-class-infiniband, and sysfs-class-infiniband_verbs and -mad beside it.
"""

from dradriver.host import PCI_DIR, Host
from dradriver_nic.inventory import RdmaDevice

CHAR_DEVICES = "/dev/infiniband"

_CONNECTION_MANAGER = "rdma_cm"
"""One for all: by it connections are made that are addressed by IP."""

_CLASSES = ("infiniband_verbs", "infiniband_mad")


def rdma_devices(host: Host, address: str) -> tuple[RdmaDevice, ...]:
    """Return the RDMA devices of a PCI function, by name. One in a pod's network namespace is not among them."""
    directory = f"{PCI_DIR}/{address}"
    names = host.list_dir(f"{directory}/infiniband")
    if not names:
        return ()
    files: dict[str, list[str]] = {name: [] for name in names}
    for kind in _CLASSES:
        for file in host.list_dir(f"{directory}/{kind}"):
            owner = host.read_text(f"{directory}/{kind}/{file}/ibdev")
            if owner in files:
                files[owner].append(f"{CHAR_DEVICES}/{file}")
    shared = (
        [f"{CHAR_DEVICES}/{_CONNECTION_MANAGER}"]
        if host.exists(f"dev/infiniband/{_CONNECTION_MANAGER}")
        else []
    )
    return tuple(RdmaDevice(name, char_devices=(*sorted(files[name]), *shared)) for name in names)


def rdma_exclusive(host: Host) -> bool | None:
    """Return whether each RDMA device belongs to one network namespace; None where the kernel has no RDMA.

    The parameter says how it is now, also after `rdma system set netns`.
    """
    text = host.read_text("sys/module/ib_core/parameters/netns_mode")
    return None if text not in {"Y", "N", "0", "1"} else text in {"N", "0"}
