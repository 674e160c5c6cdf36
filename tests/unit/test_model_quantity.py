"""Quantities: what is read, what is printed, and that both agree with a real API server's answers."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.model.quantity import Format, Quantity, json_quantity

VECTORS = Path(__file__).resolve().parents[2].parent / "shared/vectors/validation/vectors.json"

# Sent like this and stored like this, although it is not the canonical text: see `Quantity`.
ECHOED = {"+1", "01", "5.", "1E3", "123456789.123456789"}


def parse(text: str) -> Quantity:
    return Quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("-0", "0"),
        ("1000", "1k"),
        ("1536000", "1536k"),
        ("1024", "1024"),
        ("1500m", "1500m"),
        ("1.5", "1500m"),
        ("0.5", "500m"),
        ("-1.5", "-1500m"),
        ("1000m", "1"),
        ("1000000n", "1m"),
        ("1E", "1E"),
        ("1000P", "1E"),
        ("1024Mi", "1Gi"),
        ("1000Mi", "1000Mi"),
        ("1.5Gi", "1536Mi"),
        ("1023Ki", "1023Ki"),
        ("1Ki", "1Ki"),
        ("0.5Ki", "512"),
        ("2.1Ki", "2150400m"),
        ("1e3", "1e3"),
        ("12E6", "12e6"),
        ("1500e-3", "1500e-3"),
        ("1000e-3", "1"),
        ("1e400", "10e399"),
        ("1e-100", "1e-9"),
    ],
)
def test_text_comes_back_with_the_largest_suffix_that_keeps_it_exact(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("0.1n", "1n"), ("-0.1n", "-1n"), ("1.0000000001", "1000000001n"), ("0.0000000001Ki", "103n")],
)
def test_below_a_billionth_is_rounded_away_from_zero(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


def test_only_binary_amounts_are_capped_at_int64() -> None:
    assert str(parse("8Ei")) == "9223372036854775807"
    assert str(parse("-16Ei")) == "-9223372036854775807"
    assert str(parse("7Ei")) == "7Ei"
    assert str(parse("9223372036854775808")) == "9223372036854775808"


def test_amounts_that_the_server_would_lose_are_printed_exactly() -> None:
    assert str(parse("1000E")) == "1e21"
    assert str(parse("4Ei") + parse("4Ei")) == "9223372036854775808"


NOT_NUMBERS = ["", "1..2", "--1", "0x10", "1_000", "nan", "inf", "Infinity", "\u0661"]
NOT_SUFFIXES = ["80 Gi", "80GB", "1K", "1ki", "1e", "1e+", "1e1.5", " 1", "1 ", "1\n"]
NO_DIGITS = ["Ei", "Pi", "e-10"]
TOO_LONG = ["1e1000", "1e-1000", "1" * 513]


@pytest.mark.parametrize("text", [*NOT_NUMBERS, *NOT_SUFFIXES, *NO_DIGITS, *TOO_LONG])
def test_bad_text_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"^quantity '.*: allowed is a decimal number .* Ki Mi Gi Ti Pi Ei"):
        parse(text)


@pytest.mark.parametrize("text", ["+", "-", ".", "m", "k", "Ki", "Ti", "e5", "-.e-9"])
def test_text_without_digits_is_zero_as_on_the_server(text: str) -> None:
    assert parse(text) == Quantity(0)


def test_long_outside_text_is_cut_in_the_message() -> None:
    with pytest.raises(ValueError, match=r"\(10000 characters\)") as refusal:
        parse("9" * 10000)
    assert len(str(refusal.value)) < 400


def test_equality_and_hash_are_by_value() -> None:
    assert parse("1Gi") == parse("1024Mi") == parse("1073741824") == parse("1073741824e0")
    assert len({parse("1Gi"), parse("1024Mi"), parse("1073741824")}) == 1
    assert parse("1Gi") != parse("1G")
    assert parse("1") != 1


def test_order_is_by_value() -> None:
    assert sorted([parse("1Gi"), parse("1G"), parse("-1"), parse("1000m")]) == [
        parse("-1"),
        parse("1"),
        parse("1G"),
        parse("1Gi"),
    ]


def test_sums_keep_the_format_of_the_first_that_is_not_zero() -> None:
    assert str(parse("1Gi") + parse("1Mi")) == "1025Mi"
    assert str(parse("1Gi") - parse("512Mi")) == "512Mi"
    assert str(sum([parse("1Gi"), parse("1Gi")], Quantity(0))) == "2Gi"
    assert str(Quantity(0) - parse("1Gi")) == "-1Gi"
    assert str(-parse("500m")) == "-500m"
    assert str(parse("9984Mi") * 7) == str(7 * parse("9984Mi")) == "69888Mi"


@pytest.mark.parametrize(
    ("text", "units"), [("1500m", 2), ("-1500m", -2), ("1n", 1), ("2", 2), ("0", 0), ("1.5Ki", 1536)]
)
def test_to_int_rounds_away_from_zero(text: str, units: int) -> None:
    assert parse(text).to_int() == units


def test_made_from_integers() -> None:
    assert str(Quantity.from_int(85899345920, binary=True)) == "80Gi"
    assert str(Quantity.from_int(200000)) == "200k"
    assert str(Quantity.from_milli(1500)) == "1500m"
    assert repr(Quantity.from_int(132)) == "Quantity('132')"


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        (None, "0"),
        (5, "5"),
        (-2000, "-2k"),
        (1.5, "1500m"),
        (0.1, "100m"),
        (1e22, "10e21"),
        (" 64Mi ", "64Mi"),
    ],
)
def test_json_values(value: object, canonical: str) -> None:
    assert str(json_quantity(value)) == canonical


@pytest.mark.parametrize(
    "value", [True, False, [], {}, b"1", float("inf"), float("nan"), 1 << 1024, "\t1", "1\u00a0", "null"]
)
def test_other_json_values_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="quantity"):
        json_quantity(value)


SCALES = {
    **{
        suffix: Fraction(1000) ** power
        for power, suffix in enumerate(["n", "u", "m", "", *"kMGTPE"], start=-3)
    },
    **{f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
    "e3": Fraction(10**3),
    "E-3": Fraction(1, 10**3),
    "e+21": Fraction(10**21),
    "e-12": Fraction(1, 10**12),
}
NUMBERS = st.from_regex(r"[+-]?[0-9]{1,22}(\.[0-9]{0,12})?", fullmatch=True)
SUFFIXES = st.sampled_from(sorted(SCALES))


@settings(max_examples=200, deadline=None)
@given(NUMBERS, SUFFIXES)
def test_canonical_text_reads_back_as_the_same_value(number: str, suffix: str) -> None:
    quantity = parse(number + suffix)
    assert parse(str(quantity)) == quantity
    assert str(parse(str(quantity))) == str(quantity)


@settings(max_examples=200, deadline=None)
@given(NUMBERS, SUFFIXES)
def test_value_is_the_exact_one_rounded_to_nano_and_capped(number: str, suffix: str) -> None:
    exact = Fraction(number.removesuffix(".")) * SCALES[suffix]
    nano = math.ceil(abs(exact) * 10**9)
    if suffix.endswith("i"):
        nano = min(nano, (2**63 - 1) * 10**9)
    assert parse(number + suffix).nano == (nano if exact > 0 else -nano)


@settings(max_examples=200, deadline=None)
@given(st.integers(), st.integers(), st.sampled_from(Format), st.sampled_from(Format))
def test_order_and_arithmetic_are_those_of_fractions(a: int, b: int, left: Format, right: Format) -> None:
    p, q = Quantity(a, left), Quantity(b, right)
    x, y = Fraction(a, 10**9), Fraction(b, 10**9)
    assert (p < q, p <= q, p > q, p >= q, p == q) == (x < y, x <= y, x > y, x >= y, x == y)
    assert Fraction((p + q).nano, 10**9) == x + y
    assert Fraction((p - q).nano, 10**9) == x - y
    assert parse(str(p + q)) == p + q


def quantities(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of each field of type Quantity in a spec or status of resource.k8s.io."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from quantities(item, f"{path}/{index}")
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        here = f"{path}/{key}"
        if key == "validValues":
            yield from ((f"{here}/{index}", item) for index, item in enumerate(value or []))
        elif key in {"default", "min", "max", "step", "allocationMultiplier"} or (
            key == "value" and re.search(r"/(capacity|counters)/[^/]*$|/capacity/.*/.*/", path)
        ):
            yield here, value
        elif key == "consumedCapacity" or (key == "requests" and path.endswith("/capacity")):
            yield from ((f"{here}/{name}", item) for name, item in (value or {}).items())
        elif key not in {"config", "data", "conditions", "attributes", "selectors"}:
            yield from quantities(value, here)


def recorded() -> list[dict[str, Any]]:
    if not VECTORS.exists():
        pytest.skip(f"no recorded answers of an API server at {VECTORS.name}")
    vectors: list[dict[str, Any]] = json.loads(VECTORS.read_bytes())["vectors"]
    return [vector for vector in vectors if isinstance(vector.get("object"), dict)]


def body(vector: dict[str, Any]) -> Any:
    part = "status" if vector["verb"].endswith("-status") else "spec"
    return vector["object"].get(part)


def read_all(node: Any) -> list[Quantity]:
    return [json_quantity(value) for _, value in quantities(node)]


def report(what: str, names: Iterable[str]) -> None:
    ordered = sorted(names)
    print(f"{what}, in {len(ordered)} vectors: {' '.join(ordered)}")  # noqa: T201


def test_every_quantity_that_a_real_server_accepted_is_read_and_printed_alike() -> None:
    used: dict[str, int] = {}
    differing = {}
    for vector in recorded():
        if not vector["accepted"]:
            continue
        sent = dict(quantities(body(vector)))
        stored = dict(quantities(vector.get("stored", body(vector))))
        for path, value in sent.items():
            quantity = json_quantity(value)
            used[vector["name"]] = used.get(vector["name"], 0) + 1
            if path in stored and not (value is None and stored[path] is None):
                assert json_quantity(stored[path]) == quantity, (vector["name"], path)
                if str(quantity) != stored[path]:
                    differing[value] = stored[path]
    report(f"{sum(used.values())} accepted quantities", used)
    assert sum(used.values()) > 200
    assert differing.items() <= {text: text for text in ECHOED}.items()


def test_every_quantity_that_a_real_server_could_not_read_is_refused() -> None:
    used = []
    for vector in recorded():
        if vector["status"] == 400 and "quantities must match" in vector.get("message", ""):
            used.append(vector["name"])
            with pytest.raises(ValueError, match="quantity"):
                read_all(body(vector))
    report("refused quantities", used)
    assert len(used) >= 5


def test_quantities_of_answers_with_other_faults_are_read() -> None:
    """A vector rejected for another reason than a quantity's text has texts that the server could read."""
    used = [vector["name"] for vector in recorded() if vector["status"] == 422 and read_all(body(vector))]
    report("quantities read in vectors rejected for something else", used)
    assert used
