"""The ResourceSlice specs of one pool: checked, laid out, encoded and numbered."""

import hashlib
from dataclasses import dataclass

from dradriver.model import PoolContent
from dradriver.model.names import MAX_DRIVER_NAME, check_pool, check_subdomain
from dradriver.slices.check import LeftOut, checked
from dradriver.slices.diff import NOTHING, Earlier, next_generation
from dradriver.slices.encode import ApiShape, Body, counter_set_body, device_body, has_overhead
from dradriver.slices.layout import SliceContent, layout, placement
from dradriver.slices.limits import MAX_OBJECT_NAME


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
        """Return the object name of a slice, unique in the cluster; within the pool, names sort by number.

        Where it would be longer than a name may be (253), a hash stands for its end.
        """
        name = f"{self.kind}-{number:03}-{self.driver}-{self.node}"
        if len(name) <= MAX_OBJECT_NAME:
            return name
        digest = hashlib.sha256(f"{self.kind} {self.driver} {self.node}".encode()).hexdigest()[:16]
        return f"{name[: MAX_OBJECT_NAME - 17].rstrip('-.')}-{digest}"


@dataclass(frozen=True, slots=True)
class PoolSpecs:
    """What is to be published of a pool.

    specs      ResourceSlice specs by slice number, at least one
    left_out   devices and counter sets that are not in them, with the reasons
    warnings   what else was dropped
    """

    specs: tuple[Body, ...]
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]


def pool_specs(
    pool: Pool, content: PoolContent, shape: ApiShape = ApiShape.RESOURCES, earlier: Earlier = NOTHING
) -> PoolSpecs:
    """Return the specs of a pool.

    earlier   what was published before: things stay in the slices where they are in it, and the generation
              goes on from it
    """
    fitting = checked(content)
    slices = layout(fitting.content, placement(earlier.specs))
    specs = tuple(_spec(pool, len(slices), content, shape) for content in slices)
    generation = next_generation(earlier, specs)
    for spec in specs:
        spec["pool"]["generation"] = generation
    return PoolSpecs(specs, fitting.left_out, (*fitting.warnings, *_reductions(fitting.content, shape)))


def _spec(pool: Pool, count: int, content: SliceContent, shape: ApiShape) -> Body:
    spec: Body = {
        "driver": pool.driver,
        "nodeName": pool.node,
        "pool": {"name": pool.name, "generation": 0, "resourceSliceCount": count},
    }
    if content.counter_sets:
        spec["sharedCounters"] = [counter_set_body(one) for one in content.counter_sets]
    if content.devices:
        spec["devices"] = [device_body(device, shape) for device in content.devices]
    return spec


def _reductions(content: PoolContent, shape: ApiShape) -> tuple[str, ...]:
    entries = [entry for device in content.devices for entry in device.node_allocatable]
    if shape is ApiShape.PLAIN and entries:
        return ("node allocatable resources are not published: this API server has no field for them",)
    if shape is ApiShape.MAPPINGS and any(has_overhead(entry) for entry in entries):
        return ("overheads of node allocatable resources are not published: they need Kubernetes 1.37",)
    return ()
