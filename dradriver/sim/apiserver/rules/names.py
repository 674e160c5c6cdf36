"""The grammars of names, labels and versions, each with the server's own words for what is wrong.

Every function returns what is wrong with a value: nothing where it is right. Lengths are counted in bytes, as Go
does. Facts: k8s.io/apimachinery `util/validation`, `api/validate/content`; pkg/apis/resource/validation.
"""

import functools
import ipaddress
import re
from typing import Final

from dradriver.sim.apiserver.rules.errors import Problems, quoted

Texts = tuple[str, ...]

MAX_LABEL: Final = 63
MAX_SUBDOMAIN: Final = 253
MAX_DRIVER: Final = 63
MAX_POOL: Final = 253
MAX_DOMAIN: Final = 63
MAX_IDENTIFIER: Final = 32
MAX_VALUE: Final = 64

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_KEY: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_IDENTIFIER: Final = "[A-Za-z_][A-Za-z0-9_]*"
_REASON: Final = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"

_is_label = re.compile(_LABEL, re.ASCII).fullmatch
_is_subdomain = re.compile(_SUBDOMAIN, re.ASCII).fullmatch
_is_key = re.compile(_KEY, re.ASCII).fullmatch
_is_identifier = re.compile(_IDENTIFIER, re.ASCII).fullmatch
_is_reason = re.compile(_REASON, re.ASCII).fullmatch
_is_version = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
).fullmatch
_is_uuid = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII).fullmatch

_LABEL_ERROR: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    f"with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_ERROR: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    f"'{_SUBDOMAIN}')"
)
_KEY_ERROR: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_KEY}')"
)
_LABEL_VALUE_ERROR: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'({_KEY})?')"
)
_IDENTIFIER_ERROR: Final = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is "
    f"'{_IDENTIFIER}')"
)
_REASON_ERROR: Final = (
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
    "characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or "
    f"'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '{_REASON}')"
)
_NOT_NORMAL: Final = (
    "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal "
    "characters"
)


def size(text: str) -> int:
    """Return the bytes of a text."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


@functools.lru_cache(maxsize=4096)
def label(value: str) -> Texts:
    """Check a DNS label of at most 63."""
    found = [f"must be no more than {MAX_LABEL} characters"] if size(value) > MAX_LABEL else []
    if not _is_label(value):
        found.append("must not contain dots" if _is_subdomain(value) else _LABEL_ERROR)
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def subdomain(value: str, unit: str = "characters") -> Texts:
    """Check a DNS subdomain of at most 253; `unit` is how this caller's message calls the bytes."""
    found = [f"must be no more than {MAX_SUBDOMAIN} {unit}"] if size(value) > MAX_SUBDOMAIN else []
    if not _is_subdomain(value):
        found.append(_SUBDOMAIN_ERROR)
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def label_key(value: str) -> Texts:
    """Check a label key: a name of at most 63, optionally behind `domain/`."""
    prefix, slash, name = value.rpartition("/")
    if "/" in prefix:
        prefixed = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return (f"a valid label key {_KEY_ERROR} {prefixed}",)
    found = []
    if slash and not prefix:
        found.append("prefix part must be non-empty")
    elif slash:
        found += [f"prefix part {text}" for text in subdomain(prefix, "bytes")]
    if not name:
        found.append("name part must be non-empty")
    elif size(name) > MAX_LABEL:
        found.append(f"name part must be no more than {MAX_LABEL} bytes")
    if not _is_key(name):
        found.append(f"name part {_KEY_ERROR}")
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def label_value(value: str) -> Texts:
    """Check the value of a label: empty, or like the name of a key."""
    found = [f"must be no more than {MAX_LABEL} bytes"] if size(value) > MAX_LABEL else []
    if value and not _is_key(value):
        found.append(_LABEL_VALUE_ERROR)
    return tuple(found)


def condition_reason(value: str) -> Texts:
    """Check the reason of a condition."""
    return () if _is_reason(value) else (_REASON_ERROR,)


def is_version(value: str) -> bool:
    """Whether a text is a version by semver.org 2.0.0; the numbers may be of any size."""
    return _is_version(value) is not None


def check_driver(problems: Problems, field: str, value: str) -> None:
    """Check the name of a driver: a DNS subdomain of at most 63 bytes, upper case allowed."""
    if not value:
        problems.required(field)
    if size(value) > MAX_DRIVER:
        problems.too_long(field, MAX_DRIVER)
    if value:
        problems.invalid_for(field, value, subdomain(value.lower()))


def check_pool(problems: Problems, field: str, value: str) -> None:
    """Check the name of a pool: DNS subdomains joined by slashes, at most 253 bytes."""
    if not value:
        problems.required(field)
        return
    if size(value) > MAX_POOL:
        problems.too_long(field, MAX_POOL)
    for part in value.split("/"):
        problems.invalid_for(field, part, subdomain(part))


@functools.lru_cache(maxsize=4096)
def is_qualified(name: str) -> bool:
    """Whether an attribute or capacity has a right name; two slashes or more skip every check."""
    parts = name.split("/")
    if len(parts) > 2:
        return True
    problems = Problems()
    check_qualified(problems, "", name)
    return not problems


def check_qualified(problems: Problems, field: str, name: str) -> None:
    """Check the name of an attribute or capacity: a C identifier, optionally behind `domain/`."""
    parts = name.split("/")
    if len(parts) > 2:
        return
    if len(parts) == 2:
        domain = parts[0]
        if domain:
            check_driver(problems, field, domain)
        else:
            problems.invalid(field, "", "the domain must not be empty")
        if not parts[1]:
            problems.invalid(field, "", "the name must not be empty")
            return
    identifier = parts[-1]
    if size(identifier) > MAX_IDENTIFIER:
        problems.too_long(field, MAX_IDENTIFIER)
    if not _is_identifier(identifier):
        problems.invalid(field, identifier, _IDENTIFIER_ERROR)


def check_fully_qualified(problems: Problems, field: str, name: str) -> None:
    """Check the name of an attribute with its domain."""
    check_qualified(problems, field, name)
    if "/" not in name:
        problems.invalid(
            field, name, "a fully qualified name must be a domain and a name separated by a slash"
        )


def check_uid(problems: Problems, field: str, value: str) -> None:
    """Check a share id: a UUID in lower case, as google/uuid's Validate and then the server see it."""
    wrong = _uuid_error(value)
    if wrong:
        problems.invalid(field, value, f"error validating uid: {wrong}")
    elif len(value) != 36 or value != value.lower():
        problems.invalid(field, value, _NOT_NORMAL)


def _uuid_error(value: str) -> str:
    bare = value
    match size(value):
        case 36:
            pass
        case 45:
            if value[:9].lower() != "urn:uuid:":
                return f"invalid urn prefix: {quoted(value[:9])}"
            bare = value[9:]
        case 38:
            if value[0] != "{" or value[-1] != "}":
                return "invalid bracketed UUID format"
            bare = value[1:-1]
        case 32:
            bare = f"{value[:8]}-{value[8:12]}-{value[12:16]}-{value[16:20]}-{value[20:]}"
        case other:
            return f"invalid UUID length: {other}"
    return "" if _is_uuid(bare) else "invalid UUID format"


def check_interface_address(problems: Problems, field: str, value: str) -> None:
    """Check an IP address with the length of its prefix, in canonical form."""
    canonical = _canonical_address(value)
    if canonical is None:
        problems.invalid(
            field, value, "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"
        )
    elif value != canonical:
        problems.invalid(field, value, f"must be in canonical form ({quoted(canonical)})")


def _canonical_address(value: str) -> str | None:
    text, slash, length = value.partition("/")
    if not slash or not length.isascii() or not length.isdigit() or "%" in text:
        return None
    # Leading zeros, which the server's lenient parser takes for decimal and its canonical form does not have.
    parts = [part.lstrip("0") or part[:1] for part in text.split(".")] if ":" not in text else [text]
    try:
        address = ipaddress.ip_address(".".join(parts))
    except ValueError:
        return None
    bits = int(length) if len(length) < 9 else 999
    if bits > address.max_prefixlen:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return f"{address.ipv4_mapped}/{bits - 96 if bits > 32 else bits}"
    return f"{address.compressed}/{bits}"
