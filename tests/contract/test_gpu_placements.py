"""What is offered of a GPU in MIG mode is what NVML allows: tried on the stub driver for every kind of GPU.

The stub knows memory slices, engines and how many instances a profile admits, and nothing of counters.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

import nvmlnodes
from dradriver.model import Device, PoolContent, Quantity
from dradriver_gpu import GpuBackend
from dradriver_gpu.geometry import Placement
from gpunode import GpuNode
from nvmlclients import Operator
from nvmlfacts import Node

GPUS: dict[str, Callable[..., Node]] = {
    name: getattr(nvmlnodes, name) for name in ("a30", "a100_40", "a100_80", "h100", "h200", "b200", "gb200")
}

every_gpu = pytest.mark.parametrize("kind", GPUS)


class Gpu:
    """One GPU in MIG mode, its devices, and its driver to try them."""

    def __init__(self, backend: GpuBackend, node: GpuNode) -> None:
        self.backend = backend
        self.node = node
        inventory = backend.probe()
        (self.gpu,) = inventory.gpus
        self.content = backend.devices(inventory)
        geometry = self.gpu.geometry
        assert geometry is not None
        self.placements = {f"{self.gpu.name}-{one.suffix}": one for one in geometry.placements}

    @contextlib.contextmanager
    def trying(self) -> Iterator["Trial"]:
        """Yield the driver."""
        with self.backend.nvml.session() as session:
            yield Trial(session.gpu(self.gpu.address))


class Trial:
    """Makes instances as a driver's user does, and says whether it could."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def create(self, placement: Placement) -> Any | None:
        """Return the instance that could be made; None where it was refused."""
        place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.profile.size)
        try:
            return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                self._handle, placement.profile.id, ctypes.byref(place)
            )
        except pynvml.NVMLError_InsufficientResources:
            return None

    def destroy(self, instance: Any) -> None:
        """Destroy it."""
        pynvml.nvmlGpuInstanceDestroy(instance)


@contextlib.contextmanager
def in_mig_mode(directory: Path, kind: str, **options: str) -> Iterator[Gpu]:
    """Yield a GPU of that kind, in MIG mode and offered in partitions."""
    node = GpuNode(directory, GPUS[kind](1).each(mig_at_start=1))
    with node.backend({"mode": "partitions", **options}) as backend:
        yield Gpu(backend, node)


def left_of(content: PoolContent) -> dict[str, int]:
    """Return the counters, in billionths."""
    (counter_set,) = content.counter_sets
    return {name: amount.nano for name, amount in counter_set.counters.items()}


def draws(device: Device) -> Mapping[str, Quantity]:
    """Return what a device draws."""
    (drawn,) = device.consumes.values()
    return drawn


def fits(device: Device, left: Mapping[str, int]) -> bool:
    """Return whether the scheduler would still give it out."""
    return all(amount.nano <= left[name] for name, amount in draws(device).items())


def less(left: Mapping[str, int], device: Device) -> dict[str, int]:
    """Return what is left beside a device."""
    return {**left, **{name: left[name] - amount.nano for name, amount in draws(device).items()}}


@every_gpu
def test_every_placement_of_the_driver_is_a_device_and_can_be_made(tmp_path: Path, kind: str) -> None:
    with in_mig_mode(tmp_path, kind) as gpu:
        assert [device.name for device in gpu.content.devices] == [*gpu.placements]
        told = {(p.id, start, p.size) for p in gpu.node.stub.node.gpus[0].profiles for start in p.starts}
        assert {(p.profile.id, p.start, p.profile.size) for p in gpu.placements.values()} == told
        with gpu.trying() as driver:
            for placement in gpu.placements.values():
                instance = driver.create(placement)
                assert instance is not None
                driver.destroy(instance)


@every_gpu
def test_two_fit_the_counters_if_and_only_if_the_driver_makes_both(tmp_path: Path, kind: str) -> None:
    with in_mig_mode(tmp_path, kind) as gpu, gpu.trying() as driver:
        pairs = 0
        for one in gpu.content.devices:
            first = driver.create(gpu.placements[one.name])
            left = less(left_of(gpu.content), one)
            for other in gpu.content.devices:
                second = driver.create(gpu.placements[other.name])
                assert fits(other, left) == (second is not None), (one.name, other.name)
                if second is not None:
                    pairs += 1
                    driver.destroy(second)
            driver.destroy(first)
        assert pairs > 2 * len(gpu.content.devices)


@every_gpu
def test_any_number_fits_the_counters_if_and_only_if_the_driver_makes_them_all(
    tmp_path: Path, kind: str
) -> None:
    with in_mig_mode(tmp_path, kind) as gpu, gpu.trying() as driver:
        devices = gpu.content.devices
        sets = 0

        def extend(first: int, left: Mapping[str, int]) -> None:
            """Try each further device on top of what stands, and go on from those that fit."""
            nonlocal sets
            for number in range(first, len(devices)):
                instance = driver.create(gpu.placements[devices[number].name])
                assert fits(devices[number], left) == (instance is not None), devices[number].name
                if instance is not None:
                    sets += 1
                    extend(number + 1, less(left, devices[number]))
                    driver.destroy(instance)

        extend(0, left_of(gpu.content))
        assert sets > 100 if kind != "a30" else sets > 20


@every_gpu
def test_the_whole_gpu_stands_alone(tmp_path: Path, kind: str) -> None:
    node = GpuNode(tmp_path, GPUS[kind](1).each(mig_without_reset=1, mig_query_always=1))
    with node.backend({"mode": "partitions", "migMode": "switch"}) as backend:
        content = backend.devices(backend.probe())
    *parts, whole = content.devices
    assert whole.attributes["type"] == "gpu"
    assert fits(whole, left_of(content))
    beside = less(left_of(content), whole)
    assert not any(beside.values()), "it takes all there is"
    assert not any(fits(part, beside) for part in parts)
    assert not any(fits(whole, less(left_of(content), part)) for part in parts)


@every_gpu
def test_beside_a_foreign_instance_is_offered_what_the_driver_still_makes(tmp_path: Path, kind: str) -> None:
    with in_mig_mode(tmp_path, kind) as gpu:
        operator = Operator(gpu.node.stub)
        for foreign in gpu.placements.values():
            number = operator.create(0, foreign.profile.id, foreign.start)
            content = gpu.backend.devices(gpu.backend.probe())
            with gpu.trying() as driver:
                possible = []
                for name, placement in gpu.placements.items():
                    instance = driver.create(placement)
                    if instance is not None:
                        possible.append(name)
                        driver.destroy(instance)
                assert [device.name for device in content.devices] == possible, foreign.suffix
                if possible:
                    left = left_of(content)
                    for one in content.devices:
                        first = driver.create(gpu.placements[one.name])
                        for other in content.devices:
                            second = driver.create(gpu.placements[other.name])
                            assert fits(other, less(left, one)) == (second is not None)
                            if second is not None:
                                driver.destroy(second)
                        driver.destroy(first)
            assert "was not made here: what it takes is not offered" in content.warnings[0]
            operator.destroy(0, number)
        assert gpu.backend.devices(gpu.backend.probe()) == gpu.content


def test_an_instance_of_ours_takes_nothing_away_from_what_is_offered(tmp_path: Path) -> None:
    with in_mig_mode(tmp_path, "h100") as gpu:
        ours = gpu.placements["gpu-0000-1b-00-0-mig-3g-40gb-4"]
        foreign = gpu.placements["gpu-0000-1b-00-0-mig-1g-10gb-0"]
        operator = Operator(gpu.node.stub)
        gpu.backend.owned.add(gpu.gpu.name, ours.profile.id, ours.start)
        operator.create(0, ours.profile.id, ours.start)
        assert gpu.backend.devices(gpu.backend.probe()) == gpu.content
        operator.create(0, foreign.profile.id, foreign.start)
        content = gpu.backend.devices(gpu.backend.probe())
        names = {device.name for device in content.devices}
        assert "gpu-0000-1b-00-0-mig-3g-40gb-4" in names
        assert names == {name for name, one in gpu.placements.items() if not one.overlaps(0, 1)}
        gpu.backend.owned.discard(gpu.gpu.name, ours.profile.id, ours.start)
        content = gpu.backend.devices(gpu.backend.probe())
        assert not any(gpu.placements[device.name].overlaps(4, 4) for device in content.devices)
        assert len(content.warnings) == 2


def test_a_daemon_that_takes_over_offers_the_same(tmp_path: Path) -> None:
    with in_mig_mode(tmp_path, "h100") as gpu:
        ours = gpu.placements["gpu-0000-1b-00-0-mig-3g-40gb-4"]
        gpu.backend.owned.add(gpu.gpu.name, ours.profile.id, ours.start)
        Operator(gpu.node.stub).create(0, ours.profile.id, ours.start)
        with gpu.node.backend({"mode": "partitions"}) as successor:
            assert successor.devices(successor.probe()) == gpu.content


def test_foreign_instances_that_may_be_destroyed_are_in_nobody_s_way(tmp_path: Path) -> None:
    with in_mig_mode(tmp_path, "h100", foreignInstances="destroy") as gpu:
        Operator(gpu.node.stub).create(0, 0, 0)
        assert gpu.backend.devices(gpu.backend.probe()) == gpu.content
