"""The host on which the tests run, read by others as well."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dradriver.host import CPUSet, Host, read_topology

pytestmark = pytest.mark.skipif(
    not Path("/sys/devices/system/cpu/online").exists(), reason="no sysfs with CPUs here"
)


def test_cpus_and_memory_are_those_that_the_system_counts() -> None:
    topology = read_topology(Host())
    assert len(topology.online) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert CPUSet(os.sched_getaffinity(0)) <= topology.online
    assert topology.memory.total_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_status_of_this_process_is_its_affinity() -> None:
    allowed = read_topology(Host()).allowed.cpus
    assert allowed is not None
    assert allowed & read_topology(Host()).online == CPUSet(os.sched_getaffinity(0))


def test_cores_sockets_and_nodes_are_those_of_lscpu() -> None:
    lscpu = shutil.which("lscpu")
    if lscpu is None:
        pytest.skip("lscpu is not installed")
    table = subprocess.run([lscpu, "-p=CPU,CORE,SOCKET,NODE"], check=True, capture_output=True, text=True)
    rows = [line.split(",") for line in table.stdout.splitlines() if not line.startswith("#")]
    topology = read_topology(Host())
    assert [int(row[0]) for row in rows] == list(topology.online)
    assert len({row[1] for row in rows}) == len(topology.cores)
    assert len({row[2] for row in rows}) == len(topology.packages)
    for row in rows:
        assert row[3] == "" or int(row[3]) == topology.node_of(int(row[0]))
