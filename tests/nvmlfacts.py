"""Facts for the stub NVML library: a driver, its GPUs, what they can do, and how old drivers differ.

Keys are those that tests/nvml_stub reads. A fact that is not there is a query that the GPU does not support.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

Value = int | str

COMPUTE, GRAPHICS, MPS = "c", "g", "m"

_CUDA_OF_BRANCH = {
    450: 11000, 455: 11010, 460: 11020, 465: 11030, 470: 11040, 495: 11050, 510: 11060, 515: 11070, 520: 11080,
    525: 12000, 530: 12010, 535: 12020, 545: 12030, 550: 12040, 555: 12050, 560: 12060, 570: 12080, 575: 12090,
    580: 13000, 590: 13010, 595: 13020, 610: 13030,
}  # fmt: skip
_PROFILES_OF_BRANCH = {450: 5, 455: 6, 460: 7, 470: 8, 525: 10, 570: 13, 575: 17, 595: 18}
_FIELDS_OF_BRANCH = {
    450: 146, 455: 147, 460: 148, 470: 161, 520: 167, 525: 170, 530: 173, 535: 197, 550: 200, 555: 223, 560: 230,
    570: 269, 575: 274, 590: 289, 595: 303,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    """A GPU instance profile; `index` is the number to ask with, `id` the one that comes back."""

    index: int
    id: int
    name: str
    slices: int
    instances: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int
    memory_mib: int
    size: int
    starts: tuple[int, ...]
    p2p: int = 0

    def line(self) -> str:
        """Return the line of the facts file."""
        numbers = (
            self.index, self.id, self.slices, self.instances, self.multiprocessors, self.copy_engines, self.decoders,
            self.encoders, self.jpegs, self.ofas, self.memory_mib, self.p2p, self.p2p, self.size,
        )  # fmt: skip
        return f"profile {' '.join(map(str, numbers))} {','.join(map(str, self.starts))} {self.name}"


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """A compute instance profile within GPU instances of one profile."""

    gpu_profile: int
    index: int
    id: int
    name: str
    slices: int
    instances: int
    multiprocessors: int
    starts: tuple[int, ...]

    def line(self) -> str:
        """Return the line of the facts file."""
        numbers = (
            self.gpu_profile, self.index, self.id, self.slices, self.instances, self.multiprocessors, self.slices,
        )  # fmt: skip
        return f"compute {' '.join(map(str, numbers))} {','.join(map(str, self.starts))} {self.name}"


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU, or on an instance of it."""

    pid: int
    memory: int = 0
    kind: str = COMPUTE
    gpu_instance: int = -1
    compute_instance: int = -1

    def line(self) -> str:
        """Return the line of the facts file."""
        return f"process {self.kind} {self.pid} {self.memory} {self.gpu_instance} {self.compute_instance}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its driver shows it. `slot` tells physical GPUs apart whatever their order.

    Facts that are levers: lost, busy (held by somebody), mig-activation (what a change of MIG mode reports while it
    stays pending; 16 is "needs a reset"), mig-query-always (profiles are told without MIG mode), swapped-halves (GPU
    instance ids of a board whose halves have changed places), mig-uuid-by-id, ci-info-parent, and mig-at-start and
    persistence-at-start.
    """

    slot: int
    facts: Mapping[str, Value]
    profiles: tuple[Profile, ...] = ()
    compute_profiles: tuple[ComputeProfile, ...] = ()
    nvlinks: int = 0
    processes: tuple[Process, ...] = ()
    answers: Mapping[str, int] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        """The UUID, as `GPU-...`."""
        return str(self.facts["uuid"])

    @property
    def bus_id(self) -> str:
        """The PCI address, in lower case, as sysfs has it."""
        return str(self.facts["bus-id"])

    def having(self, **facts: Value | None) -> "Gpu":
        """Return it with these facts, `_` for `-`; None takes a fact away."""
        changed = {**self.facts, **{name.replace("_", "-"): value for name, value in facts.items()}}
        return replace(self, facts={name: value for name, value in changed.items() if value is not None})

    def answering(self, **answers: int) -> "Gpu":
        """Return it with codes that functions answer instead of working."""
        return replace(self, answers={**self.answers, **answers})

    def lines(self) -> Iterable[str]:
        """Yield its lines of the facts file."""
        yield f"gpu {self.slot}"
        yield from (f"{key} {value}" for key, value in self.facts.items())
        yield from (profile.line() for profile in self.profiles)
        yield from (profile.line() for profile in self.compute_profiles)
        yield from (process.line() for process in self.processes)
        yield from (f"answer {function} {code}" for function, code in self.answers.items())
        version = self.facts.get("nvlink-version", 0)
        yield from (f"nvlink {link} 1 {version} 2 {self._switch(link)}" for link in range(self.nvlinks))
        yield from (f"field {number} 0 {kind} {value}" for number, kind, value in self._fields())

    @staticmethod
    def _switch(link: int) -> str:
        return f"0000:{0x05 + link % 4:02x}:00.0"

    def _fields(self) -> Iterable[tuple[int, int, Value]]:
        """Yield field id, value type and value, for the fields that say what the facts say."""
        unsigned, long_long = 1, 3
        for number, kind, key in (
            (1, unsigned, "ecc-mode"), (2, unsigned, "ecc-mode"), (3, long_long, "ecc-corrected"),
            (4, long_long, "ecc-uncorrected"), (5, long_long, "ecc-corrected-aggregate"),
            (6, long_long, "ecc-uncorrected-aggregate"), (29, unsigned, "retired-single-bit"),
            (30, unsigned, "retired-double-bit"), (31, unsigned, "retired-pending"),
            (142, unsigned, "rows-corrected"), (143, unsigned, "rows-uncorrected"), (144, unsigned, "rows-pending"),
            (145, unsigned, "rows-failure"), (184, unsigned, "mig-without-reset"), (199, unsigned, "mig-query-always"),
            (230, unsigned, "recovery-action"),
        ):  # fmt: skip
            if key in self.facts:
                yield number, kind, self.facts[key]
        yield 91, unsigned, self.nvlinks


@dataclass(frozen=True, slots=True)
class Node:
    """A driver and its GPUs, in the order in which NVML counts them.

    Facts that are levers: init-error (a code), permission (0 for a process that may look and not change).
    """

    driver: str
    gpus: tuple[Gpu, ...]
    facts: Mapping[str, Value] = field(default_factory=dict)

    @property
    def branch(self) -> int:
        """The driver's branch."""
        return branch_of(self.driver)

    def having(self, **facts: Value | None) -> "Node":
        """Return it with these facts of the node, `_` for `-`; None takes a fact away."""
        changed = {**self.facts, **{name.replace("_", "-"): value for name, value in facts.items()}}
        return replace(self, facts={name: value for name, value in changed.items() if value is not None})

    def without_driver(self, code: int = 9) -> "Node":
        """Return it with a driver that is not loaded (9), or is another one than the library's (18)."""
        return self.having(init_error=code)

    def each(self, **facts: Value | None) -> "Node":
        """Return it with these facts on every GPU."""
        return replace(self, gpus=tuple(gpu.having(**facts) for gpu in self.gpus))

    def with_gpu(self, index: int, gpu: Gpu) -> "Node":
        """Return it with that GPU at that index."""
        return replace(self, gpus=(*self.gpus[:index], gpu, *self.gpus[index + 1 :]))

    def text(self) -> str:
        """Return the facts file."""
        cuda = _at(_CUDA_OF_BRANCH, self.branch)
        facts: dict[str, Value] = {
            "driver": self.driver,
            "nvml": f"{cuda // 1000}.{self.driver}",
            "cuda": cuda,
            "branch": f"R{self.branch}",
            "profiles": _at(_PROFILES_OF_BRANCH, self.branch),
            "fields": _at(_FIELDS_OF_BRANCH, self.branch),
            **self.facts,
        }
        lines = [f"{key} {value}" for key, value in facts.items()]
        for gpu in self.gpus:
            lines.extend(gpu.lines())
        return "\n".join(lines) + "\n"


def branch_of(driver: str) -> int:
    """Return the branch of a driver version: 580 of 580.65.06."""
    return int(driver.split(".", maxsplit=1)[0])


def _at(since: Mapping[int, int], branch: int) -> int:
    return since[max(known for known in since if known <= branch)]


def under_driver(node: Node, driver: str) -> Node:
    """Return the node under another driver: what that knows of profiles and events, and how it names things."""
    return replace(node, driver=driver, gpus=tuple(_under(gpu, driver) for gpu in node.gpus))


def _under(gpu: Gpu, driver: str) -> Gpu:
    branch = branch_of(driver)
    known = tuple(profile for profile in gpu.profiles if profile.index < _at(_PROFILES_OF_BRANCH, branch))
    ids = {profile.id for profile in known}
    facts: dict[str, Value | None] = {"event_types": event_types(branch, mig=bool(known))}
    if gpu.facts.get("gsp-enabled"):
        facts["gsp_version"] = driver
    if branch < 470:
        facts["mig_uuid_by_id"] = 1
        facts["name"] = str(gpu.facts["name"]).removeprefix("NVIDIA ")
    if branch < 550:
        facts["mig_query_always"] = 0
    if branch < 570:
        facts["recovery_action"] = None
    changed = gpu.having(**facts)
    compute = tuple(profile for profile in gpu.compute_profiles if profile.gpu_profile in ids)
    return replace(changed, profiles=known, compute_profiles=compute)


def event_types(branch: int, *, mig: bool) -> int:
    """Return the mask of the events that a driver reports.

    ECC errors, states, XIDs, clocks, power source, MIG changes; from 570 on also storms of ECC errors, retirement,
    poison, an unavailable GPU, and the recovery action.
    """
    return 0x9F | (0x100 if mig else 0) | (0xFE00 if branch >= 570 else 0)
