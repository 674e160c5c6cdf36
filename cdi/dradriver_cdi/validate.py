"""The rules for the values of a CDI spec: those of SPEC.md 1.1, those of the Go library with which runtimes
read specs, and those of the kernel where a value that breaks them could only fail later, in the runtime.

Where releases of the library differ, the strictest counts, since a node may run any of them.
"""

import re
from collections.abc import Iterable, Mapping

from dradriver_cdi.errors import CDIError
from dradriver_cdi.spec import ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec

# The library up to 1.1 panics, runtime and all, on a vendor or class of one character.
_VENDOR_OR_CLASS = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ENV = re.compile(r"[^=]+=.*", re.DOTALL)
_PERMISSIONS = re.compile(r"[rwm]*")
# dev_valid_name() of the kernel, which also keeps to 15 bytes: IFNAMSIZ less the closing NUL.
_INTERFACE = re.compile(r"(?!\.{1,2}\Z)[^/:\s\0]{1,15}")
_QUALIFIED_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_DNS_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_DNS_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*", re.IGNORECASE | re.ASCII)

_HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_UINT32 = 2**32 - 1
_ANNOTATION_BYTES = 256 * 1024


def validate(spec: Spec) -> None:
    """Raise CDIError for the first value of `spec` that breaks a rule."""
    validate_kind(spec.kind)
    _annotations(spec.annotations, "annotations")
    _edits(spec.edits, "containerEdits")
    if not spec.devices:
        raise CDIError("devices", spec.devices, "must have at least one device")
    _each_once((device.name for device in spec.devices), "devices[{}].name")
    for index, device in enumerate(spec.devices):
        _device(device, f"devices[{index}]")


def validate_kind(kind: str, at: str = "kind") -> None:
    """Raise CDIError unless `kind` is vendor/class."""
    vendor, _, cls = kind.partition("/")
    for part, longest in ((vendor, 253), (cls, 63)):
        if len(part) > longest or not _VENDOR_OR_CLASS.fullmatch(part):
            raise CDIError(
                at,
                kind,
                "must be vendor/class, each of two or more of [A-Za-z0-9_.-], a letter first, no mark last, "
                "the vendor of at most 253 characters, the class of at most 63",
            )


def validate_device_name(name: str, at: str = "name") -> None:
    """Raise CDIError unless `name` can name a device."""
    if not _DEVICE_NAME.fullmatch(name):
        raise CDIError(
            at, name, "must be one or more of [A-Za-z0-9_.:-] with a letter or digit first and last"
        )


def qualified(kind: str, device: str) -> str:
    """Return the name by which a container asks for a device: vendor/class=device.

    Raises CDIError if either part could not stand in a spec.
    """
    validate_kind(kind)
    validate_device_name(device)
    return f"{kind}={device}"


def _device(device: Device, at: str) -> None:
    validate_device_name(device.name, f"{at}.name")
    _annotations(device.annotations, f"{at}.annotations")
    if not device.edits:
        raise CDIError(f"{at}.containerEdits", {}, "must have at least one edit")
    _edits(device.edits, f"{at}.containerEdits")


def _edits(edits: ContainerEdits, at: str) -> None:
    _env(edits.env, f"{at}.env")
    for index, node in enumerate(edits.device_nodes):
        _device_node(node, f"{at}.deviceNodes[{index}]")
    _net_devices(edits.net_devices, f"{at}.netDevices")
    for index, mount in enumerate(edits.mounts):
        _mount(mount, f"{at}.mounts[{index}]")
    for index, hook in enumerate(edits.hooks):
        _hook(hook, f"{at}.hooks[{index}]")
    if edits.intel_rdt is not None:
        _intel_rdt(edits.intel_rdt, f"{at}.intelRdt")
    for index, gid in enumerate(edits.additional_gids):
        # Runtimes skip 0 without a word: whoever asks for it would believe to have it.
        _integer(gid, 1, _UINT32, f"{at}.additionalGids[{index}]")


def _env(env: tuple[str, ...], at: str) -> None:
    for index, variable in enumerate(env):
        _text(variable, f"{at}[{index}]")
        if not _ENV.fullmatch(variable):
            raise CDIError(f"{at}[{index}]", variable, "must be NAME=value with a NAME")


def _device_node(node: DeviceNode, at: str) -> None:
    _path(node.path, f"{at}.path")
    _text(node.host_path, f"{at}.hostPath")
    if node.type not in {"", "b", "c", "u", "p"}:
        raise CDIError(f"{at}.type", node.type, "must be b, c, u, p or absent")
    _device_numbers(node, at)
    if not _PERMISSIONS.fullmatch(node.permissions):
        raise CDIError(f"{at}.permissions", node.permissions, "must be some of r, w and m, or absent")
    _optional_integer(node.file_mode, 0, 0o7777, f"{at}.fileMode")
    _optional_integer(node.uid, 0, _UINT32, f"{at}.uid")
    _optional_integer(node.gid, 0, _UINT32, f"{at}.gid")


def _device_numbers(node: DeviceNode, at: str) -> None:
    """Refuse numbers that the runtime would complete from the host's node, or drop, instead of using them."""
    if node.major is None and node.minor is None:
        return
    if node.type not in {"b", "c", "u"}:
        raise CDIError(f"{at}.type", node.type, "must be b, c or u where major or minor is given")
    # dev_t of Linux: 12 and 20 bits. To the library a major of 0 is none, and a minor needs a major.
    _integer(node.major or 0, 1, 2**12 - 1, f"{at}.major")
    _optional_integer(node.minor, 0, 2**20 - 1, f"{at}.minor")


def _net_devices(devices: tuple[NetDevice, ...], at: str) -> None:
    for index, device in enumerate(devices):
        _interface(device.host_interface_name, f"{at}[{index}].hostInterfaceName")
        _interface(device.name, f"{at}[{index}].name")
    _each_once((device.host_interface_name for device in devices), f"{at}[{{}}].hostInterfaceName")
    _each_once((device.name for device in devices), f"{at}[{{}}].name")


def _interface(name: str, at: str) -> None:
    _text(name, at)
    if not _INTERFACE.fullmatch(name) or len(name.encode()) > 15:
        raise CDIError(at, name, "must be an interface name: 1 to 15 bytes without / : or space, not . or ..")


def _mount(mount: Mount, at: str) -> None:
    _path(mount.host_path, f"{at}.hostPath")
    _path(mount.container_path, f"{at}.containerPath")
    _texts(mount.options, f"{at}.options")
    _text(mount.type, f"{at}.type")


def _hook(hook: Hook, at: str) -> None:
    if hook.hook_name not in _HOOK_NAMES:
        raise CDIError(f"{at}.hookName", hook.hook_name, f"must be one of {', '.join(_HOOK_NAMES)}")
    _path(hook.path, f"{at}.path")
    if not hook.path.startswith("/"):
        raise CDIError(f"{at}.path", hook.path, "must be an absolute path")
    _texts(hook.args, f"{at}.args")
    _env(hook.env, f"{at}.env")
    _optional_integer(hook.timeout, 1, _UINT32, f"{at}.timeout")


def _intel_rdt(rdt: IntelRdt, at: str) -> None:
    _text(rdt.clos_id, f"{at}.closID")
    # "/" alone is the root class.
    refused = rdt.clos_id in {".", ".."} or "/" in rdt.clos_id or "\n" in rdt.clos_id
    if rdt.clos_id != "/" and (refused or len(rdt.clos_id.encode()) >= 4096):
        raise CDIError(f"{at}.closID", rdt.clos_id, "must be a file name (not . or ..), / alone, or absent")
    _text(rdt.l3_cache_schema, f"{at}.l3CacheSchema")
    _text(rdt.mem_bw_schema, f"{at}.memBwSchema")
    _texts(rdt.schemata, f"{at}.schemata")


def _annotations(annotations: Mapping[str, str], at: str) -> None:
    size = 0
    for key, value in annotations.items():
        _annotation_key(key, at)
        _text(value, f"{at}.{key}")
        size += len(key) + len(value.encode())
    if size > _ANNOTATION_BYTES:
        raise CDIError(at, f"{size} bytes", f"must be at most {_ANNOTATION_BYTES} bytes of keys and values")


def _annotation_key(key: str, at: str) -> None:
    prefix, slash, name = key.rpartition("/")
    prefixed = len(prefix) <= 253 and _DNS_SUBDOMAIN.fullmatch(prefix)
    if (slash and not prefixed) or not _QUALIFIED_NAME.fullmatch(name):
        raise CDIError(
            at,
            key,
            "must be a name of 1 to 63 of [A-Za-z0-9_.-] with a letter or digit first and last, "
            "after an optional DNS subdomain and /",
        )


def _each_once(names: Iterable[str], at: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise CDIError(at.format(index), name, "must be there only once")
        seen.add(name)


def _path(path: str, at: str) -> None:
    if not path:
        raise CDIError(at, path, "must not be empty")
    _text(path, at)


def _texts(texts: tuple[str, ...], at: str) -> None:
    for index, text in enumerate(texts):
        _text(text, f"{at}[{index}]")


def _text(text: str, at: str) -> None:
    """Refuse what no C string can hold, and what UTF-8 cannot (readers would replace it without a word)."""
    if "\0" in text:
        raise CDIError(at, text, "must not hold a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CDIError(at, text, "must be valid Unicode text") from None


def _optional_integer(value: int | None, lowest: int, highest: int, at: str) -> None:
    if value is not None:
        _integer(value, lowest, highest, at)


def _integer(value: int, lowest: int, highest: int, at: str) -> None:
    if not lowest <= value <= highest:
        raise CDIError(at, value, f"must be {lowest} to {highest}")
