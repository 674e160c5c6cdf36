"""A whole node that is not there: for tests, for CI and for trying things out without the hardware.

GPUs and network cards of the node are files below one directory, on which steps really create and remove something, and
which fail as a script says. See docs/fake.md.
"""

from dradriver_fake.faults import Fault
from dradriver_fake.gpu_backend import FakeGpuBackend
from dradriver_fake.hardware import complaints, leftovers, pull_out, put_in, reboot
from dradriver_fake.nic_backend import FakeNicBackend
from dradriver_fake.node import FakeNode, shipped
from dradriver_fake.options import FakeOptions
from dradriver_fake.script import clear_faults, set_fault, set_faults

__all__ = [
    "FakeGpuBackend",
    "FakeNicBackend",
    "FakeNode",
    "FakeOptions",
    "Fault",
    "clear_faults",
    "complaints",
    "leftovers",
    "pull_out",
    "put_in",
    "reboot",
    "set_fault",
    "set_faults",
    "shipped",
]
