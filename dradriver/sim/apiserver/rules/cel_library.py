"""The functions that a device selector can call.

Facts: cel-go common/stdlib and ext (strings 2, sets, lists 3, two-variable comprehensions, optional types);
apiserver pkg/cel/environment/base.go and pkg/cel/library (1.34 to 1.37); dynamic-resource-allocation/cel for
`includes`. One line is one overload: its id, the function with the types of its arguments, the type of the result; a
receiver stands in angle brackets. The authorizer's functions are declared too, though nothing makes an authorizer here.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dradriver.sim.apiserver.rules.cel_types import CelType, type_of


@dataclass(frozen=True, slots=True)
class Overload:
    """One form of a function; the first of `args` is the receiver if it is a `member`."""

    id: str
    member: bool
    args: tuple[CelType, ...]
    result: CelType


_STANDARD: Final = """
logical_and: _&&_(bool, bool) -> bool
logical_or: _||_(bool, bool) -> bool
logical_not: !_(bool) -> bool
conditional: _?_:_(bool, A, A) -> A
not_strictly_false: @not_strictly_false(bool) -> bool
equals: _==_(A, A) -> bool
not_equals: _!=_(A, A) -> bool
negate_int64: -_(int) -> int
negate_double: -_(double) -> double
add_int64: _+_(int, int) -> int
add_uint64: _+_(uint, uint) -> uint
add_double: _+_(double, double) -> double
add_string: _+_(string, string) -> string
add_bytes: _+_(bytes, bytes) -> bytes
add_list: _+_(list(A), list(A)) -> list(A)
add_duration_duration: _+_(duration, duration) -> duration
add_duration_timestamp: _+_(duration, timestamp) -> timestamp
add_timestamp_duration: _+_(timestamp, duration) -> timestamp
subtract_int64: _-_(int, int) -> int
subtract_uint64: _-_(uint, uint) -> uint
subtract_double: _-_(double, double) -> double
subtract_duration_duration: _-_(duration, duration) -> duration
subtract_timestamp_duration: _-_(timestamp, duration) -> timestamp
subtract_timestamp_timestamp: _-_(timestamp, timestamp) -> duration
multiply_int64: _*_(int, int) -> int
multiply_uint64: _*_(uint, uint) -> uint
multiply_double: _*_(double, double) -> double
divide_int64: _/_(int, int) -> int
divide_uint64: _/_(uint, uint) -> uint
divide_double: _/_(double, double) -> double
modulo_int64: _%_(int, int) -> int
modulo_uint64: _%_(uint, uint) -> uint
index_list: _[_](list(A), int) -> A
index_map: _[_](map(A, B), A) -> B
optional_list_index_value: _[_](optional(list(A)), int) -> optional(A)
optional_map_index_value: _[_](optional(map(A, B)), A) -> optional(B)
list_optindex_optional_int: _[?_](list(A), int) -> optional(A)
optional_list_optindex_optional_int: _[?_](optional(list(A)), int) -> optional(A)
map_optindex_optional_value: _[?_](map(A, B), A) -> optional(B)
optional_map_optindex_optional_value: _[?_](optional(map(A, B)), A) -> optional(B)
in_list: @in(A, list(A)) -> bool
in_map: @in(A, map(A, B)) -> bool
size_string: size(string) -> int
size_bytes: size(bytes) -> int
size_list: size(list(A)) -> int
size_map: size(map(A, B)) -> int
string_size: <string>.size() -> int
bytes_size: <bytes>.size() -> int
list_size: <list(A)>.size() -> int
map_size: <map(A, B)>.size() -> int
to_dyn: dyn(A) -> dyn
type: type(A) -> type(A)
int64_to_int64: int(int) -> int
uint64_to_int64: int(uint) -> int
double_to_int64: int(double) -> int
string_to_int64: int(string) -> int
duration_to_int64: int(duration) -> int
timestamp_to_int64: int(timestamp) -> int
uint64_to_uint64: uint(uint) -> uint
int64_to_uint64: uint(int) -> uint
double_to_uint64: uint(double) -> uint
string_to_uint64: uint(string) -> uint
double_to_double: double(double) -> double
int64_to_double: double(int) -> double
uint64_to_double: double(uint) -> double
string_to_double: double(string) -> double
string_to_string: string(string) -> string
bool_to_string: string(bool) -> string
int64_to_string: string(int) -> string
uint64_to_string: string(uint) -> string
double_to_string: string(double) -> string
bytes_to_string: string(bytes) -> string
duration_to_string: string(duration) -> string
timestamp_to_string: string(timestamp) -> string
bytes_to_bytes: bytes(bytes) -> bytes
string_to_bytes: bytes(string) -> bytes
bool_to_bool: bool(bool) -> bool
string_to_bool: bool(string) -> bool
duration_to_duration: duration(duration) -> duration
string_to_duration: duration(string) -> duration
int64_to_duration: duration(int) -> duration
timestamp_to_timestamp: timestamp(timestamp) -> timestamp
string_to_timestamp: timestamp(string) -> timestamp
int64_to_timestamp: timestamp(int) -> timestamp
contains_string: <string>.contains(string) -> bool
ends_with_string: <string>.endsWith(string) -> bool
starts_with_string: <string>.startsWith(string) -> bool
matches: matches(string, string) -> bool
matches_string: <string>.matches(string) -> bool
duration_to_hours: <duration>.getHours() -> int
duration_to_minutes: <duration>.getMinutes() -> int
duration_to_seconds: <duration>.getSeconds() -> int
duration_to_milliseconds: <duration>.getMilliseconds() -> int
map_insert: cel.@mapInsert(map(A, B), A, B) -> map(A, B)
map_insert_map: cel.@mapInsert(map(A, B), map(A, B)) -> map(A, B)
optional_of: optional.of(A) -> optional(A)
optional_ofNonZeroValue: optional.ofNonZeroValue(A) -> optional(A)
optional_none: optional.none() -> optional(A)
optional_value: <optional(A)>.value() -> A
optional_hasValue: <optional(A)>.hasValue() -> bool
optional_or_optional: <optional(A)>.or(optional(A)) -> optional(A)
optional_orValue_value: <optional(A)>.orValue(A) -> A
"""

_STRINGS: Final = """
string_char_at_int: <string>.charAt(int) -> string
string_index_of_string: <string>.indexOf(string) -> int
string_index_of_string_int: <string>.indexOf(string, int) -> int
string_last_index_of_string: <string>.lastIndexOf(string) -> int
string_last_index_of_string_int: <string>.lastIndexOf(string, int) -> int
string_lower_ascii: <string>.lowerAscii() -> string
string_upper_ascii: <string>.upperAscii() -> string
string_replace_string_string: <string>.replace(string, string) -> string
string_replace_string_string_int: <string>.replace(string, string, int) -> string
string_split_string: <string>.split(string) -> list(string)
string_split_string_int: <string>.split(string, int) -> list(string)
string_substring_int: <string>.substring(int) -> string
string_substring_int_int: <string>.substring(int, int) -> string
string_trim: <string>.trim() -> string
string_format: <string>.format(list(dyn)) -> string
strings_quote: strings.quote(string) -> string
list_join: <list(string)>.join() -> string
list_join_string: <list(string)>.join(string) -> string
string_find_string: <string>.find(string) -> string
string_find_all_string: <string>.findAll(string) -> list(string)
string_find_all_string_int: <string>.findAll(string, int) -> list(string)
"""

_COLLECTIONS: Final = """
list_sets_contains_list: sets.contains(list(A), list(A)) -> bool
list_sets_equivalent_list: sets.equivalent(list(A), list(A)) -> bool
list_sets_intersects_list: sets.intersects(list(A), list(A)) -> bool
list_a_index_of_int: <list(A)>.indexOf(A) -> int
list_a_last_index_of_int: <list(A)>.lastIndexOf(A) -> int
"""

_LISTS_134: Final = """
list_slice: <list(A)>.slice(int, int) -> list(A)
list_flatten: <list(list(A))>.flatten() -> list(A)
list_flatten_int: <list(dyn)>.flatten(int) -> list(dyn)
lists_range: lists.range(int) -> list(int)
list_reverse: <list(A)>.reverse() -> list(A)
list_distinct: <list(A)>.distinct() -> list(A)
list_first: <list(A)>.first() -> optional(A)
list_last: <list(A)>.last() -> optional(A)
"""

_KUBERNETES: Final = """
string_to_quantity: quantity(string) -> kubernetes.Quantity
is_quantity_string: isQuantity(string) -> bool
quantity_sign: sign(kubernetes.Quantity) -> int
quantity_is_greater_than: <kubernetes.Quantity>.isGreaterThan(kubernetes.Quantity) -> bool
quantity_is_less_than: <kubernetes.Quantity>.isLessThan(kubernetes.Quantity) -> bool
quantity_compare_to: <kubernetes.Quantity>.compareTo(kubernetes.Quantity) -> int
quantity_get_float: <kubernetes.Quantity>.asApproximateFloat() -> double
quantity_get_int: <kubernetes.Quantity>.asInteger() -> int
quantity_is_integer: <kubernetes.Quantity>.isInteger() -> bool
quantity_add: <kubernetes.Quantity>.add(kubernetes.Quantity) -> kubernetes.Quantity
quantity_add_int: <kubernetes.Quantity>.add(int) -> kubernetes.Quantity
quantity_sub: <kubernetes.Quantity>.sub(kubernetes.Quantity) -> kubernetes.Quantity
quantity_sub_int: <kubernetes.Quantity>.sub(int) -> kubernetes.Quantity
string_to_semver: semver(string) -> kubernetes.Semver
string_bool_to_semver: semver(string, bool) -> kubernetes.Semver
is_semver_string: isSemver(string) -> bool
is_semver_string_bool: isSemver(string, bool) -> bool
semver_is_greater_than: <kubernetes.Semver>.isGreaterThan(kubernetes.Semver) -> bool
semver_is_less_than: <kubernetes.Semver>.isLessThan(kubernetes.Semver) -> bool
semver_compare_to: <kubernetes.Semver>.compareTo(kubernetes.Semver) -> int
semver_major: <kubernetes.Semver>.major() -> int
semver_minor: <kubernetes.Semver>.minor() -> int
semver_patch: <kubernetes.Semver>.patch() -> int
string_to_url: url(string) -> kubernetes.URL
is_url_string: isURL(string) -> bool
url_get_scheme: <kubernetes.URL>.getScheme() -> string
url_get_host: <kubernetes.URL>.getHost() -> string
url_get_hostname: <kubernetes.URL>.getHostname() -> string
url_get_port: <kubernetes.URL>.getPort() -> string
url_get_escaped_path: <kubernetes.URL>.getEscapedPath() -> string
url_get_query: <kubernetes.URL>.getQuery() -> map(string, list(string))
string_to_ip: ip(string) -> net.IP
is_ip: isIP(string) -> bool
ip_is_canonical: ip.isCanonical(string) -> bool
ip_family: <net.IP>.family() -> int
ip_is_unspecified: <net.IP>.isUnspecified() -> bool
ip_is_loopback: <net.IP>.isLoopback() -> bool
ip_is_link_local_multicast: <net.IP>.isLinkLocalMulticast() -> bool
ip_is_link_local_unicast: <net.IP>.isLinkLocalUnicast() -> bool
ip_is_global_unicast: <net.IP>.isGlobalUnicast() -> bool
ip_to_string: string(net.IP) -> string
string_to_cidr: cidr(string) -> net.CIDR
is_cidr: isCIDR(string) -> bool
cidr_contains_ip_string: <net.CIDR>.containsIP(string) -> bool
cidr_contains_ip_ip: <net.CIDR>.containsIP(net.IP) -> bool
cidr_contains_cidr_string: <net.CIDR>.containsCIDR(string) -> bool
cidr_contains_cidr: <net.CIDR>.containsCIDR(net.CIDR) -> bool
cidr_ip: <net.CIDR>.ip() -> net.IP
cidr_prefix_length: <net.CIDR>.prefixLength() -> int
cidr_masked: <net.CIDR>.masked() -> net.CIDR
cidr_to_string: string(net.CIDR) -> string
format_named: format.named(string) -> optional(kubernetes.NamedFormat)
format_validate: <kubernetes.NamedFormat>.validate(string) -> optional(list(string))
authorizer_path: <kubernetes.authorization.Authorizer>.path(string) -> kubernetes.authorization.PathCheck
authorizer_group: <kubernetes.authorization.Authorizer>.group(string) -> kubernetes.authorization.GroupCheck
groupcheck_resource: <kubernetes.authorization.GroupCheck>.resource(string) -> kubernetes.authorization.ResourceCheck
pathcheck_check: <kubernetes.authorization.PathCheck>.check(string) -> kubernetes.authorization.Decision
resourcecheck_check: <kubernetes.authorization.ResourceCheck>.check(string) -> kubernetes.authorization.Decision
decision_allowed: <kubernetes.authorization.Decision>.allowed() -> bool
decision_reason: <kubernetes.authorization.Decision>.reason() -> string
"""

_INCLUDES: Final = "dra_includes_dyn_dyn: <dyn>.includes(dyn) -> bool"

_NUMBERS: Final = ("int", "uint", "double")
_ORDERED: Final = ("bool", *_NUMBERS, "string", "bytes", "timestamp", "duration")
_SUMMED: Final = ("int", "uint", "double", "duration")
_SORTED: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_DATES: Final = (
    "FullYear",
    "Month",
    "DayOfYear",
    "DayOfMonth",
    "Date",
    "DayOfWeek",
    "Hours",
    "Minutes",
    "Seconds",
    "Milliseconds",
)
_ORDER: Final = {"<": "less", "<=": "less_equals", ">": "greater", ">=": "greater_equals"}

_LINE: Final = re.compile(r"(\w+): (?:<(.+?)>\.)?([^\s(]+)\((.*)\) -> (.+)")


@functools.cache
def functions(minor: int, *, lists: bool) -> Mapping[str, tuple[Overload, ...]]:
    """Return the functions of a server 1.`minor` by name; `lists`: attributes may be lists.

    A server takes new expressions with the functions of the release before its own.
    """
    lines = [_STANDARD, _STRINGS, _COLLECTIONS, _KUBERNETES, _generated()]
    if minor >= 35:
        lines += [_LISTS_134, *(f"list_{one}_sort: <list({one})>.sort() -> list({one})" for one in _SORTED)]
        lines += [
            f"list_{one}_sortByAssociatedKeys: <list(A)>.@sortByAssociatedKeys(list({one})) -> list(A)"
            for one in _SORTED
        ]
    if lists:
        lines.append(_INCLUDES)
    made: dict[str, list[Overload]] = {}
    for line in "\n".join(lines).splitlines():
        match = _LINE.fullmatch(line)
        if match is not None:
            name, overload = _overload(match)
            made.setdefault(name, []).append(overload)
    return {name: tuple(overloads) for name, overloads in made.items()}


def _overload(match: re.Match[str]) -> tuple[str, Overload]:
    identity, receiver, name, args, result = match.groups()
    types = type_of(f"list({args})").parts if args else ()
    if receiver:
        types = (type_of(receiver), *types)
    return name, Overload(identity, bool(receiver), types, type_of(result))


def _generated() -> str:
    lines = []
    for sign, word in _ORDER.items():
        lines += [f"{word}_{one}: _{sign}_({one}, {one}) -> bool" for one in _ORDERED]
        lines += [
            f"{word}_{one}_{other}: _{sign}_({one}, {other}) -> bool"
            for one in _NUMBERS
            for other in _NUMBERS
            if one != other
        ]
    for date in _DATES:
        lines.append(f"timestamp_{date}: <timestamp>.get{date}() -> int")
        lines.append(f"timestamp_{date}_with_tz: <timestamp>.get{date}(string) -> int")
    for one in _SORTED:
        lines.append(f"list_{one}_is_sorted_bool: <list({one})>.isSorted() -> bool")
        lines += [f"list_{one}_{word}: <list({one})>.{word}() -> {one}" for word in ("min", "max")]
    lines += [f"list_{one}_sum_{one}: <list({one})>.sum() -> {one}" for one in _SUMMED]
    return "\n".join(lines)
