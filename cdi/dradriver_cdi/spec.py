"""The objects of a CDI spec (SPEC.md of CDI 1.1) as frozen data, to and from their JSON form.

`to_dict` gives the JSON form: camelCase keys, absent where empty. `from_dict` reads it back strictly: unknown
keys and wrong types raise CDIError with the path of the value. Both deal with shape only; the rules for what
the values may be are in `dradriver_cdi.validate`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from dradriver_cdi.decode import Fields
from dradriver_cdi.errors import CDIError
from dradriver_cdi.version import KNOWN_VERSIONS, minimum_version

JSONObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node for the container.

    `path` is that in the container, `host_path` that on the host (empty: the same). `type` is b, c, u or p.
    Without type, major and minor the runtime takes them from the host's node; a major without a minor means
    minor 0. `file_mode` is that of chmod(2); None leaves it, `uid` and `gid` to the runtime. `permissions`
    (of the cgroup) are some of r, w and m; empty means all.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None

    def to_dict(self) -> JSONObject:
        return {
            "path": self.path,
            **_present(
                {
                    "hostPath": self.host_path,
                    "type": self.type,
                    "major": self.major,
                    "minor": self.minor,
                    "fileMode": self.file_mode,
                    "permissions": self.permissions,
                    "uid": self.uid,
                    "gid": self.gid,
                }
            ),
        }

    @classmethod
    def from_dict(cls, value: object, at: str = "") -> Self:
        fields = Fields(value, at)
        node = cls(
            path=fields.required("path"),
            host_path=fields.text("hostPath"),
            type=fields.text("type"),
            major=fields.integer("major"),
            minor=fields.integer("minor"),
            file_mode=fields.integer("fileMode"),
            permissions=fields.text("permissions"),
            uid=fields.integer("uid"),
            gid=fields.integer("gid"),
        )
        fields.end("path, hostPath, type, major, minor, fileMode, permissions, uid, gid")
        return node


@dataclass(frozen=True, slots=True)
class NetDevice:
    """A network interface that the runtime moves into the container, there called `name` (since 1.1)."""

    host_interface_name: str
    name: str

    def to_dict(self) -> JSONObject:
        return {"hostInterfaceName": self.host_interface_name, "name": self.name}

    @classmethod
    def from_dict(cls, value: object, at: str = "") -> Self:
        fields = Fields(value, at)
        device = cls(fields.required("hostInterfaceName"), fields.required("name"))
        fields.end("hostInterfaceName, name")
        return device


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount for the container; `type` (since 0.4), a file system type, may be empty for a bind mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""

    def to_dict(self) -> JSONObject:
        return {
            "hostPath": self.host_path,
            "containerPath": self.container_path,
            **_present({"options": list(self.options), "type": self.type}),
        }

    @classmethod
    def from_dict(cls, value: object, at: str = "") -> Self:
        fields = Fields(value, at)
        mount = cls(
            host_path=fields.required("hostPath"),
            container_path=fields.required("containerPath"),
            options=fields.texts("options"),
            type=fields.text("type"),
        )
        fields.end("hostPath, containerPath, options, type")
        return mount


@dataclass(frozen=True, slots=True)
class Hook:
    """An OCI hook. `args` starts with the program's own name, as argv does; `timeout` is in seconds."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None

    def to_dict(self) -> JSONObject:
        return {
            "hookName": self.hook_name,
            "path": self.path,
            **_present({"args": list(self.args), "env": list(self.env), "timeout": self.timeout}),
        }

    @classmethod
    def from_dict(cls, value: object, at: str = "") -> Self:
        fields = Fields(value, at)
        hook = cls(
            hook_name=fields.required("hookName"),
            path=fields.required("path"),
            args=fields.texts("args"),
            env=fields.texts("env"),
            timeout=fields.integer("timeout"),
        )
        fields.end("hookName, path, args, env, timeout")
        return hook


@dataclass(frozen=True, slots=True)
class IntelRdt:
    """The container's place in Linux resctrl (since 0.7; `schemata` and `enable_monitoring` since 1.1).

    enableCMT and enableMBM of 0.7 to 1.0 do not exist here: 1.1 dropped them, and its readers refuse a file
    that has them.
    """

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False

    def to_dict(self) -> JSONObject:
        return _present(
            {
                "closID": self.clos_id,
                "l3CacheSchema": self.l3_cache_schema,
                "memBwSchema": self.mem_bw_schema,
                "schemata": list(self.schemata),
                "enableMonitoring": self.enable_monitoring,
            }
        )

    @classmethod
    def from_dict(cls, value: object, at: str = "") -> Self:
        fields = Fields(value, at)
        rdt = cls(
            clos_id=fields.text("closID"),
            l3_cache_schema=fields.text("l3CacheSchema"),
            mem_bw_schema=fields.text("memBwSchema"),
            schemata=fields.texts("schemata"),
            enable_monitoring=fields.flag("enableMonitoring"),
        )
        fields.end("closID, l3CacheSchema, memBwSchema, schemata, enableMonitoring")
        return rdt


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What a device or a whole spec changes in a container. Falsy when it changes nothing.

    `env` holds NAME=value strings, of which the runtime lets the last one of a name win.
    """

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        lists = (self.env, self.device_nodes, self.net_devices, self.mounts, self.hooks, self.additional_gids)
        # An IntelRdt without content is an edit all the same: it puts the container into a class of its own.
        return any(lists) or self.intel_rdt is not None

    def __add__(self, other: "ContainerEdits") -> "ContainerEdits":
        """Return these edits followed by `other`, whose intel_rdt, if any, takes the place of this one."""
        return ContainerEdits(
            env=self.env + other.env,
            device_nodes=self.device_nodes + other.device_nodes,
            net_devices=self.net_devices + other.net_devices,
            mounts=self.mounts + other.mounts,
            hooks=self.hooks + other.hooks,
            intel_rdt=self.intel_rdt if other.intel_rdt is None else other.intel_rdt,
            additional_gids=self.additional_gids + other.additional_gids,
        )

    def to_dict(self) -> JSONObject:
        edits = _present(
            {
                "env": list(self.env),
                "deviceNodes": [node.to_dict() for node in self.device_nodes],
                "netDevices": [device.to_dict() for device in self.net_devices],
                "mounts": [mount.to_dict() for mount in self.mounts],
                "hooks": [hook.to_dict() for hook in self.hooks],
                "additionalGids": list(self.additional_gids),
            }
        )
        if self.intel_rdt is not None:
            edits["intelRdt"] = self.intel_rdt.to_dict()
        return edits

    @classmethod
    def from_dict(cls, value: object, at: str = "") -> Self:
        fields = Fields(value, at)
        edits = cls(
            env=fields.texts("env"),
            device_nodes=fields.items("deviceNodes", DeviceNode.from_dict),
            net_devices=fields.items("netDevices", NetDevice.from_dict),
            mounts=fields.items("mounts", Mount.from_dict),
            hooks=fields.items("hooks", Hook.from_dict),
            intel_rdt=fields.item("intelRdt", IntelRdt.from_dict),
            additional_gids=fields.integers("additionalGids"),
        )
        fields.end("env, deviceNodes, netDevices, mounts, hooks, intelRdt, additionalGids")
        return edits


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a container asks for as `<kind>=<name>`. Annotations (since 0.6) change no container."""

    name: str
    edits: ContainerEdits = ContainerEdits()
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)

    def to_dict(self) -> JSONObject:
        return {
            "name": self.name,
            **_present({"annotations": _sorted(self.annotations)}),
            "containerEdits": self.edits.to_dict(),
        }

    @classmethod
    def from_dict(cls, value: object, at: str = "") -> Self:
        fields = Fields(value, at)
        device = cls(
            name=fields.required("name"),
            annotations=fields.table("annotations"),
            edits=fields.item("containerEdits", ContainerEdits.from_dict) or ContainerEdits(),
        )
        fields.end("name, annotations, containerEdits")
        return device


@dataclass(frozen=True, slots=True)
class Spec:
    """One CDI file: devices of one kind (vendor/class), and edits for every container that gets any of them.

    The version is no field: it follows from the content (`dradriver_cdi.version.minimum_version`).
    """

    kind: str
    devices: tuple[Device, ...]
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    edits: ContainerEdits = ContainerEdits()

    def to_dict(self) -> JSONObject:
        return {
            "cdiVersion": minimum_version(self),
            "kind": self.kind,
            **_present({"annotations": _sorted(self.annotations)}),
            "devices": [device.to_dict() for device in self.devices],
            **_present({"containerEdits": self.edits.to_dict()}),
        }

    @classmethod
    def from_dict(cls, value: object, at: str = "") -> Self:
        fields = Fields(value, at)
        version = fields.required("cdiVersion")
        spec = cls(
            kind=fields.required("kind"),
            annotations=fields.table("annotations"),
            devices=fields.items("devices", Device.from_dict),
            edits=fields.item("containerEdits", ContainerEdits.from_dict) or ContainerEdits(),
        )
        fields.end("cdiVersion, kind, annotations, devices, containerEdits")
        _check_version(version, minimum_version(spec), fields.path("cdiVersion"))
        return spec


def _check_version(version: str, needed: str, at: str) -> None:
    """Refuse, as the runtimes do, an unknown version and one too low for the content."""
    allowed = KNOWN_VERSIONS[KNOWN_VERSIONS.index(needed) :]
    if version not in allowed:
        raise CDIError(at, version, f"must be one of {', '.join(allowed)} for this content")


def _present(entries: JSONObject) -> JSONObject:
    """Drop what is empty, but not the number 0: uid 0 and minor 0 say something."""
    return {key: value for key, value in entries.items() if value or type(value) is int}


def _sorted(annotations: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(annotations.items()))
