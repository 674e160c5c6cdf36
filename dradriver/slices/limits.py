"""What the API server allows in a ResourceSlice.

The numbers are the constants and validation of k8s.io/api/resource/v1 and k8s.io/kubernetes
`pkg/apis/resource/validation` (1.36).
"""

from typing import Final

MAX_DEVICES_DETAILED: Final = 64
"""Devices in a slice of which any device has taints, consumed counters or list attributes."""

MAX_COUNTER_SETS: Final = 8
"""Counter sets in a slice. A slice holds counter sets or devices, never both."""

MAX_COUNTERS: Final = 32
"""Counters in a counter set, and counters that a device consumes of one."""

MAX_CONSUMED_SETS: Final = 2
"""Counter sets that one device consumes from."""

MAX_ATTRIBUTES_AND_CAPACITIES: Final = 32
"""Attributes and capacities of a device, together."""

MAX_ATTRIBUTE_VALUES: Final = 48
"""Attribute values of a device, each item of a list counted."""

MAX_VALUE_BYTES: Final = 64
"""Bytes of UTF-8 in a string or version."""

MAX_TAINTS: Final = 16
MAX_BINDING_CONDITIONS: Final = 4
MAX_VALID_VALUES: Final = 10

MAX_OBJECT_NAME: Final = 253
"""Characters in the name of a ResourceSlice."""

MAX_GENERATE_NAME: Final = 58
"""Characters of `generateName` that the API server keeps (k8s.io/apiserver `storage/names`)."""

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
