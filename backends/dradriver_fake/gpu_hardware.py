"""A fake GPU: GPU instances and compute instances in MIG mode, and what else it is used for.

It refuses what the real one would, in the words of NVML. Its rules are about memory slices, compute slices and how many
instances there are, and know nothing of the counters that are published: so counters that allow too much show.
"""

import uuid
from dataclasses import dataclass
from typing import Any

from dradriver_fake.boards import Board, Placement, Profile, board_of
from dradriver_fake.facts import GPUDevice
from dradriver_fake.hardware import Hardware, HardwareError, free_id, read_all, write_json

INSUFFICIENT = "insufficient resources"
NOT_FOUND = "not found"
IN_USE = "in use"
LOST = "GPU is lost"
INVALID = "invalid argument"


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance; with it the MIG device is there, and has a UUID."""

    id: int
    uuid: str


@dataclass(frozen=True, slots=True)
class GPUInstance:
    """A GPU instance: `start` is its first memory slice."""

    id: int
    profile: str
    start: int
    compute: tuple[ComputeInstance, ...]


class GPUHardware:
    """One GPU. Every method raises HardwareError where the GPU would refuse."""

    def __init__(self, hardware: Hardware, gpu: GPUDevice) -> None:
        self._hardware = hardware
        self._gpu = gpu
        self._directory = hardware.thing("gpus", gpu.name)
        self.board: Board | None = board_of(gpu.device)

    @property
    def is_present(self) -> bool:
        """Whether it is on the bus."""
        return self._directory.is_dir()

    def instances(self) -> tuple[GPUInstance, ...]:
        """Return all GPU instances, by id; none of a GPU that is gone."""
        compute = read_all(self._directory, "ci")
        return tuple(
            GPUInstance(
                number,
                body["profile"],
                body["start"],
                tuple(
                    ComputeInstance(one, ci["uuid"])
                    for one, ci in compute.items()
                    if ci["gpuInstance"] == number
                ),
            )
            for number, body in read_all(self._directory, "gi").items()
        )

    def create_instance(self, profile_name: str, start: int) -> int:
        """Create a GPU instance; return its id."""
        with self._hardware.locked():
            self._check_present()
            profile = self.board.profile(profile_name) if self.board else None
            if profile is None or start not in profile.starts:
                raise self._refuse(INVALID, f"no profile {profile_name} at memory slice {start}")
            self._check_room(profile, start)
            number = free_id(read_all(self._directory, "gi"))
            write_json(self._directory / f"gi-{number}.json", {"profile": profile_name, "start": start})
            return number

    def create_compute(self, instance: int) -> ComputeInstance:
        """Create the compute instance that spans a GPU instance."""
        with self._hardware.locked():
            self._check_present()
            if instance not in read_all(self._directory, "gi"):
                raise self._refuse(NOT_FOUND, f"no GPU instance {instance}")
            others = read_all(self._directory, "ci")
            if any(body["gpuInstance"] == instance for body in others.values()):
                raise self._refuse(INSUFFICIENT, f"GPU instance {instance} has its compute instance")
            made = ComputeInstance(free_id(others), f"MIG-{uuid.uuid4()}")
            body = {"gpuInstance": instance, "uuid": made.uuid}
            write_json(self._directory / f"ci-{made.id}.json", body)
            return made

    def destroy_compute(self, number: int) -> None:
        """Destroy a compute instance."""
        self._remove("ci", number)

    def destroy_instance(self, number: int) -> None:
        """Destroy a GPU instance, which must have no compute instance."""
        with self._hardware.locked():
            compute = read_all(self._directory, "ci")
            if any(body["gpuInstance"] == number for body in compute.values()):
                raise self._refuse(IN_USE, f"GPU instance {number} has a compute instance")
            self._unlink("gi", number)

    def uses(self) -> dict[int, dict[str, Any]]:
        """Return what the GPU as a whole is used for: id -> claim, index and memory in bytes (all of it where 0)."""
        return read_all(self._directory, "use")

    def use(self, claim: str, index: int, memory: int) -> int:
        """Give out the GPU, or so many bytes of its memory; return the id of the use."""
        with self._hardware.locked():
            self._check_present()
            uses = self.uses()
            total = self._gpu.gpu.memory_mib << 20
            taken = sum(body["memory"] or total for body in uses.values())
            if read_all(self._directory, "gi") or taken + (memory or total) > total:
                raise self._refuse(INSUFFICIENT, f"{memory or total} bytes for claim {claim}")
            number = free_id(uses)
            body = {"claim": claim, "index": index, "memory": memory}
            write_json(self._directory / f"use-{number}.json", body)
            return number

    def end_use(self, number: int) -> None:
        """Take a use back."""
        self._remove("use", number)

    def lose(self, placement: Placement | None = None) -> None:
        """Lose all that was created, as a GPU that falls off the bus does; or only what is at a placement."""
        with self._hardware.locked():
            for instance in self.instances():
                if placement is None or (instance.profile, instance.start) == (
                    placement.profile.name,
                    placement.start,
                ):
                    for compute in instance.compute:
                        self._unlink("ci", compute.id)
                    self._unlink("gi", instance.id)
            for number in () if placement else self.uses():
                self._unlink("use", number)

    def _check_room(self, profile: Profile, start: int) -> None:
        board = self.board
        assert board is not None  # noqa: S101 - the profile is the board's
        what = f"{profile.name} at memory slice {start}"
        if self.uses():
            raise self._refuse(INSUFFICIENT, f"{what}: the GPU is given out as a whole")
        taken: set[int] = set()
        compute = profile.compute_slices
        alike = 1
        for body in read_all(self._directory, "gi").values():
            other = board.profile(body["profile"])
            if other:
                taken.update(range(body["start"], body["start"] + other.size))
                compute += other.compute_slices
                alike += other.name == profile.name
        if not taken.isdisjoint(range(start, start + profile.size)):
            raise self._refuse(INSUFFICIENT, f"{what}: memory slices are taken")
        if compute > board.compute_slices or alike > profile.max_instances:
            raise self._refuse(INSUFFICIENT, what)

    def _check_present(self) -> None:
        if not self.is_present:
            raise HardwareError(LOST, self._gpu.name)

    def _remove(self, kind: str, number: int) -> None:
        with self._hardware.locked():
            self._unlink(kind, number)

    def _unlink(self, kind: str, number: int) -> None:
        try:
            (self._directory / f"{kind}-{number}.json").unlink()
        except FileNotFoundError:
            if self.is_present:
                raise self._refuse(NOT_FOUND, f"no {kind} {number}") from None

    def _refuse(self, code: str, message: str) -> HardwareError:
        return self._hardware.complain(HardwareError(code, f"{self._gpu.name}: {message}"))
