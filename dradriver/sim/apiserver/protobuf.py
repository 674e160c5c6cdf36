"""Reading the one object that kubectl sends as protobuf and not as JSON: the namespace of `kubectl create namespace`.

Facts: k8s.io/apimachinery runtime/serializer/protobuf (the four magic bytes, then runtime.Unknown) and the generated
.proto files of core/v1 and meta/v1 (field numbers).
"""

from collections.abc import Iterator
from typing import Any, Final

CONTENT_TYPE: Final = "application/vnd.kubernetes.protobuf"

_MAGIC: Final = b"k8s\x00"
_FIXED: Final = {1: 8, 5: 4}
_LENGTH_DELIMITED: Final = 2


def namespace(body: bytes) -> dict[str, Any]:
    """Return the Namespace behind a request's body. Raises ValueError for anything else."""
    if not body.startswith(_MAGIC):
        raise ValueError("not in the protobuf encoding of Kubernetes")
    unknown = _last(body[len(_MAGIC) :])
    kind = _last(unknown.get(1, b""))
    if (kind.get(1), kind.get(2)) != (b"v1", b"Namespace"):
        raise ValueError("of protobuf objects only a Namespace is understood")
    found = list(_fields(_last(unknown.get(2, b"")).get(1, b"")))
    texts = {1: "name", 2: "generateName"}
    metadata: dict[str, Any] = {
        texts[number]: value.decode() for number, value in found if number in texts and value
    }
    for number, name in ((11, "labels"), (12, "annotations")):
        entries = [_last(value) for which, value in found if which == number]
        if entries:
            metadata[name] = {entry.get(1, b"").decode(): entry.get(2, b"").decode() for entry in entries}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _last(message: bytes) -> dict[int, bytes]:
    return dict(_fields(message))


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and content of each field with a length; others are passed over."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        number, wire = tag >> 3, tag & 7
        if wire == _LENGTH_DELIMITED:
            length, position = _varint(message, position)
            if length > len(message) - position:
                raise ValueError("a field is cut off")
            yield number, message[position : position + length]
            position += length
        elif wire == 0:
            _, position = _varint(message, position)
        elif wire in _FIXED:
            position += _FIXED[wire]
        else:
            raise ValueError(f"wire type {wire} is not known")


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            break
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number is cut off")
