"""The ResourceSlice specs of one pool: checked, laid out, encoded and numbered."""

import hashlib
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from dradriver.model import Device, PoolContent
from dradriver.model.names import MAX_DRIVER_NAME, check_pool, check_subdomain
from dradriver.slices.check import LeftOut, checked
from dradriver.slices.diff import NOTHING, Earlier, next_generation
from dradriver.slices.encode import Body, counter_set_body, device_body
from dradriver.slices.features import ApiFeatures
from dradriver.slices.layout import SliceContent, layout, placement
from dradriver.slices.limits import MAX_GENERATE_NAME, MAX_OBJECT_NAME
from dradriver.slices.reduce import bare, offered, overlapping, reductions, withdrawn

_NUMBER = re.compile(r"([0-9]{3}|[1-9][0-9]{3,5})-")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool by name: what one driver publishes of one kind of hardware on one node.

    Raises ValueError where a name is none that the API server accepts.
    """

    driver: str
    node: str
    name: str

    def __post_init__(self) -> None:
        check_subdomain(self.driver, "driver name", MAX_DRIVER_NAME)
        check_subdomain(self.node, "node name")
        check_pool(self.name)

    @property
    def kind(self) -> str:
        """The last part of the pool's name: `cpu` of `node-a/cpu`."""
        return self.name.rpartition("/")[2]

    def slice_name(self, number: int) -> str:
        """Return an object name for a slice, unique in the cluster; within the pool, names sort by number.

        Where it would be longer than a name may be (253), a hash stands for its end.
        """
        name = f"{number:03}-{self.driver}-{self.node}-{self.kind}"
        if len(name) <= MAX_OBJECT_NAME:
            return name
        digest = hashlib.sha256(f"{self.kind} {self.driver} {self.node}".encode()).hexdigest()[:16]
        return f"{name[: MAX_OBJECT_NAME - 17].rstrip('-.')}-{digest}"

    def generate_name(self, number: int) -> str:
        """Return the `generateName` of a slice, from which the API server makes a name that is free.

        It is what `slice_name` begins with. The server would cut it to 58 characters and append 5 random ones: the
        number stands first, so that it stays, and so that the names of a pool sort by it.
        """
        # Cut at a dot, it would be refused as it stands.
        return f"{number:03}-{self.driver}-{self.node}-"[:MAX_GENERATE_NAME].rstrip(".")

    def slice_number(self, name: str) -> int | None:
        """Return the number of the slice of that object name; None for a name that was not made here."""
        found = _NUMBER.match(name)
        if found is None or not name.startswith(self.generate_name(int(found[1]))):
            return None
        return int(found[1])


@dataclass(frozen=True, slots=True)
class PoolSpecs:
    """What is to be published of a pool.

    specs        ResourceSlice specs by slice number, at least one
    left_out     devices and counter sets that are not in them, with the reasons
    warnings     attributes that are not in them, each line naming device and attribute
    reductions   what the API server does not store, and what is published instead; one line for each feature
    """

    specs: tuple[Body, ...]
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]
    reductions: tuple[str, ...] = ()

    @property
    def offered(self) -> int:
        """How many devices are in the specs."""
        return sum(len(spec.get("devices", ())) for spec in self.specs)


def pool_specs(
    pool: Pool,
    content: PoolContent,
    features: ApiFeatures = ApiFeatures(),  # noqa: B008 - frozen
    earlier: Earlier = NOTHING,
    *,
    refused: Mapping[str, str] = _NOTHING,
    refused_sets: Mapping[str, str] = _NOTHING,
) -> PoolSpecs:
    """Return the specs of a pool, in the form that a server with these features stores.

    earlier        what was published before: things stay in the slices where they are in it, and the generation
                   goes on from it
    refused        devices that the server does not take, with the reasons; they are left out
    refused_sets   likewise counter sets, with which goes what draws on them

    Places are kept for devices that the server does not take, and for those that are withdrawn while they are sick:
    that they go and come back changes their slice only.
    """
    hidden = frozenset[str]() if features.counters else overlapping(content)
    bad_sets = dict(refused_sets) if features.counters else {}
    sets = tuple(one for one in content.counter_sets if one.name not in bad_sets)
    fitting = checked(offered(replace(content, counter_sets=sets), features, hidden))
    gone = withdrawn(fitting.content.devices, features, refused)
    placed = fitting.content if features.counters else replace(fitting.content, counter_sets=())
    slices = layout(placed, placement(earlier.specs))
    while len(slices) > max(1, len(earlier.specs)) and _is_empty(slices[-1], gone.keys()):
        slices = slices[:-1]
    specs = tuple(_spec(pool, len(slices), one, features, gone.keys()) for one in slices)
    generation = next_generation(earlier, specs)
    for spec in specs:
        spec["pool"]["generation"] = generation
    left_out = (
        *fitting.left_out,
        *(LeftOut(one.name, (bad_sets[one.name],)) for one in content.counter_sets if one.name in bad_sets),
        *(LeftOut(name, reasons) for name, reasons in gone.items()),
    )
    return PoolSpecs(specs, left_out, fitting.warnings, reductions(content, features, hidden))


def _spec(
    pool: Pool, count: int, content: SliceContent, features: ApiFeatures, gone: AbstractSet[str]
) -> Body:
    spec: Body = {
        "driver": pool.driver,
        "nodeName": pool.node,
        "pool": {"name": pool.name, "generation": 0, "resourceSliceCount": count},
    }
    if content.counter_sets:
        spec["sharedCounters"] = [counter_set_body(one) for one in content.counter_sets]
    devices = [_body(device, features) for device in content.devices if device.name not in gone]
    if devices:
        spec["devices"] = devices
    return spec


def _is_empty(content: SliceContent, gone: AbstractSet[str]) -> bool:
    return not content.counter_sets and all(device.name in gone for device in content.devices)


def _body(device: Device, features: ApiFeatures) -> Body:
    return device_body(bare(device, features), features.node_allocatable)
