"""Container Device Interface specs: data, rules, the lowest version that fits, and an atomic store of files.

Follows the specification of CDI 1.1 and stands alone: it imports the standard library only.
"""

from dradriver_cdi.errors import CDIError
from dradriver_cdi.spec import ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec
from dradriver_cdi.store import Store, claim_file_name, claim_file_prefix, encode
from dradriver_cdi.validate import qualified, validate, validate_device_name, validate_kind
from dradriver_cdi.version import KNOWN_VERSIONS, minimum_version

__all__ = [
    "KNOWN_VERSIONS",
    "CDIError",
    "ContainerEdits",
    "Device",
    "DeviceNode",
    "Hook",
    "IntelRdt",
    "Mount",
    "NetDevice",
    "Spec",
    "Store",
    "claim_file_name",
    "claim_file_prefix",
    "encode",
    "minimum_version",
    "qualified",
    "validate",
    "validate_device_name",
    "validate_kind",
]
