"""Which cdiVersion a spec needs: readers refuse versions that they do not know, so the lowest is written."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dradriver_cdi.spec import ContainerEdits, Spec

KNOWN_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Released versions, oldest first. Readers refuse 0.1.0 and 0.2.0 as older than any content needs; 0.8.0 and
1.0.0 changed the Go packages only, so no content needs them."""


def minimum_version(spec: "Spec") -> str:
    """Return the lowest of KNOWN_VERSIONS whose readers take `spec` (SPEC.md, "Released versions")."""
    edits = (spec.edits, *(device.edits for device in spec.devices))
    needs = (
        ("1.1.0", any(map(_needs_1_1, edits))),
        ("0.7.0", any(edit.intel_rdt is not None or edit.additional_gids for edit in edits)),
        ("0.6.0", _needs_0_6(spec)),
        ("0.5.0", any(device.name[:1] in _DIGITS for device in spec.devices) or any(_host_paths(edits))),
        ("0.4.0", any(mount.type for edit in edits for mount in edit.mounts)),
    )
    return next((version for version, needed in needs if needed), "0.3.0")


_DIGITS = tuple("0123456789")


def _needs_1_1(edits: "ContainerEdits") -> bool:
    if edits.net_devices:
        return True
    rdt = edits.intel_rdt
    # The root class "/" is no new field, but readers before 1.1 refuse it as a closID.
    return rdt is not None and bool(rdt.schemata or rdt.enable_monitoring or rdt.clos_id == "/")


def _needs_0_6(spec: "Spec") -> bool:
    annotated = spec.annotations or any(device.annotations for device in spec.devices)
    return bool(annotated) or "." in spec.kind.partition("/")[2]


def _host_paths(edits: "tuple[ContainerEdits, ...]") -> Iterator[str]:
    return (node.host_path for edit in edits for node in edit.device_nodes)
