"""The grammars of Kubernetes names and of paths, and names made from facts.

Each `check_*` function raises `ValueError` that shows the value and says what is allowed. The grammars are
those of k8s.io/apimachinery `validation` and of the resource.k8s.io API.
"""

import hashlib
import re

from dradriver.model.text import shown

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")

MAX_DRIVER_NAME = 63
MAX_POOL_NAME = 253
MAX_SUBDOMAIN = 253
MAX_IDENTIFIER = 32
MAX_DOMAIN = 63


def check_label(value: str, what: str) -> str:
    """Return `value` if it is an RFC 1123 label: 1 to 63 of a-z, 0-9 and `-`, alphanumeric at both ends."""
    if not _LABEL.fullmatch(value):
        raise ValueError(
            f"{what} {shown(value)} is not a DNS label: 1 to 63 of a-z, 0-9 and '-', "
            "with a letter or digit at both ends"
        )
    return value


def check_subdomain(value: str, what: str, limit: int = MAX_SUBDOMAIN) -> str:
    """Return `value` if it is an RFC 1123 subdomain of at most `limit` characters."""
    if len(value) > limit or not _SUBDOMAIN.fullmatch(value):
        raise ValueError(
            f"{what} {shown(value)} is not a DNS subdomain: at most {limit} of a-z, 0-9, '-' and '.', "
            "each part with a letter or digit at both ends"
        )
    return value


def check_driver(value: str) -> str:
    """Return `value` if it can be the name of one of our drivers.

    A DRA driver name is a DNS subdomain of at most 63 characters. One with the part `-claim` would blur into the
    names of other drivers' CDI files.
    """
    check_subdomain(value, "driver name", MAX_DRIVER_NAME)
    if "-claim-" in f"{value}-":
        raise ValueError(f"driver name {shown(value)} has -claim in it, which tells CDI files apart")
    return value


def check_pool(value: str) -> str:
    """Return `value` if it is a pool name: DNS subdomains joined by `/`, at most 253 characters."""
    if len(value) > MAX_POOL_NAME or not all(_SUBDOMAIN.fullmatch(part) for part in value.split("/")):
        raise ValueError(
            f"pool name {shown(value)} is not made of DNS subdomains joined by '/', "
            f"at most {MAX_POOL_NAME} characters"
        )
    return value


def check_qualified(value: str, what: str) -> str:
    """Return `value` if it is a C identifier of at most 32 characters, optionally behind `domain/`."""
    domain, slash, name = value.rpartition("/")
    if slash and (len(domain) > MAX_DOMAIN or not _SUBDOMAIN.fullmatch(domain)):
        raise ValueError(
            f"{what} {shown(value)} has a domain that is not a DNS subdomain of at most {MAX_DOMAIN}"
        )
    if len(name) > MAX_IDENTIFIER or not _IDENTIFIER.fullmatch(name):
        raise ValueError(
            f"{what} {shown(value)} is not a C identifier of at most {MAX_IDENTIFIER} characters"
        )
    return value


def check_uid(value: str) -> str:
    """Return `value` if it can be the UID of an API object: 1 to 63 letters, digits and inner `-`.

    Kubernetes gives out RFC 4122 UUIDs; the looser form admits test servers, but nothing that could
    be read as a path, an option or a CDI separator.
    """
    if not _UID.fullmatch(value):
        raise ValueError(f"uid {shown(value)} is not a UID: 1 to 63 letters, digits and inner '-'")
    return value


def check_absolute(value: str, what: str = "") -> str:
    """Return `value` if it is an absolute path that leads nowhere by `..`.

    what   field or option; empty where the caller names it
    """
    if not value.startswith("/") or "\0" in value or ".." in value.split("/"):
        field = f"{what}: " if what else ""
        raise ValueError(f"{field}an absolute path without '..' is expected, found {shown(value)}")
    return value


def pool_name(node: str, kind: str) -> str:
    """Return the name of the pool of one backend on one node, `<node>/<kind>`.

    Where that is longer than a pool name may be (253), the end of the node name gives way to a hash of the
    whole, so that two long node names keep two pools.
    """
    name = f"{node}/{kind}"
    if len(name) <= MAX_POOL_NAME:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:16]
    room = MAX_POOL_NAME - len(kind) - len(digest) - 2
    return f"{node[:room].rstrip('-.')}-{digest}/{kind}"


def short_name(name: str, driver: str) -> str:
    """Return the key of an attribute or capacity without the driver's own domain.

    The API treats `model` and `<driver>/model` of a device as one name; allocation results may carry
    either (`consumedCapacity`).
    """
    return name.removeprefix(f"{driver}/")
