"""What the stand-in API server says of CEL device selectors, beyond the recorded expressions."""

from typing import Any

import pytest

from apirules import create
from dradriver.sim.apiserver.rules import Gates, Refused

DEFAULT = Gates.of("1.36")
LISTS = Gates.of("1.36", {"DRAListTypeAttributes": True})


def refusal(expression: str, gates: Gates = DEFAULT) -> str:
    """Return why a class with this selector is refused; empty where it is not."""
    sent: dict[str, Any] = {
        "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
    try:
        create("DeviceClass", sent, gates)
    except Refused as refused:
        [cause] = refused.causes
        return cause.message
    return ""


@pytest.mark.parametrize(
    "expression",
    [
        "true",
        "device.driver == 'gpu.example.com' // comment",
        'device.driver == """gpu""" || device.driver == r\'\\d\'',
        "device.attributes['gpu.example.com'].model == 'a100'",
        "device.attributes['gpu.example.com'][?'model'].orValue('none') == 'none'",
        "device.attributes[?'gpu.example.com'].?model.hasValue()",
        "'gpu.example.com' in device.attributes && 'memory' in device.capacity['gpu.example.com']",
        "has(device.attributes['gpu.example.com'].model) ? true : !false",
        "device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) >= 0",
        "device.capacity['a.example.com'].memory.isGreaterThan(quantity('1Gi').add(quantity('1Gi')))",
        "device.attributes['a.example.com'].version.isGreaterThan(semver('1.2.3'))",
        "semver('1.2.3').major() == 1 && isSemver('1.2') == false",
        "device.attributes['a.example.com'].uuid.matches('^GPU-[0-9a-f]+$')",
        "device.attributes['a.example.com'].exists(name, name.startsWith('x'))",
        "['a', 'b'].all(x, x != device.driver) && [1, 2].map(x, x * 2) == [2, 4]",
        "{'a': 1}.exists(k, k == 'a') && {'a': 1u}['a'] == 1u",
        "cel.bind(a, device.attributes['a.example.com'], a.model == 'x' && a.index > 1)",
        "-5 + 3 * 2 % 4 - 1 < 0x10 && 1.5e3 > 2.0 && !!true",
        "[1, 2, 3].sum() == 6 && ['a'].isSorted() && 'a,b'.split(',').size() == 2",
        "size(device.driver) > 3 && device.driver.contains('gpu') && device.driver.lowerAscii() == 'a'",
        "url('https://example.com').getHost() == 'x' && ip('10.0.0.1').family() == 4",
        "duration('1h') > duration('1m') && timestamp('2026-01-01T00:00:00Z').getFullYear() == 2026",
        "dyn(1) == 1 && 1/0 == 1",
        "device.allowMultipleAllocations",
        "device.attributes['a.example.com'].healthy",
    ],
)
def test_right_selectors_are_taken(expression: str) -> None:
    assert refusal(expression) == ""


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "<input>:1:0: Syntax error: mismatched input '<EOF>' expecting"),
        ("device.driver ==", "<input>:1:17: Syntax error: mismatched input '<EOF>'"),
        ("device.driver = 'x'", "Syntax error: token recognition error at: '"),
        ("'open", "Syntax error: token recognition error at: ''open'"),
        ("(true", "Syntax error: mismatched input '<EOF>' expecting ')'"),
        ("true)", "Syntax error: mismatched input ')' expecting <EOF>"),
        ("for == 1", "reserved identifier: for"),
        ("9223372036854775808 > 1", "invalid int literal"),
        ("18446744073709551616u > 1u", "invalid uint literal"),
        ("devices.driver == 'x'", "undeclared reference to 'devices' (in container '')"),
        ("device.name == 'x'", "undefined field 'name'"),
        ("device.driver == 1", "found no matching overload for '_==_' applied to '(string, int)'"),
        ("device.driver && true", "expected type 'bool' but found 'string'"),
        ("device.driver.compareTo('x') == 0", "found no matching overload for 'compareTo'"),
        ("device.driver.nosuch()", "undeclared reference to 'nosuch' (in container '')"),
        ("device.capacity['a'].memory == '1Gi'", "'(kubernetes.Quantity, string)'"),
        ("device.attributes.exists(a.b, true)", "argument must be a simple name"),
        ("has(device)", "invalid argument to has() macro"),
        ("device.driver", "must evaluate to bool or the unknown type, not string"),
        ("1", "must evaluate to bool or the unknown type, not int"),
        ("device.driver ==\n 'x' && nope", "<input>:2:9: undeclared reference to 'nope'"),
    ],
)
def test_wrong_selectors_are_refused_with_the_place(expression: str, why: str) -> None:
    assert why in refusal(expression)


def test_the_place_is_shown_below_the_line() -> None:
    assert refusal("device.driver ==\n 'x' && nope").splitlines()[-2:] == [
        " |  'x' && nope",
        " | ........^",
    ]


def test_several_mistakes_are_all_told_in_their_order() -> None:
    found = refusal("b == 1 && a == 2")
    assert found.index("'b'") < found.index("'a'")
    assert found.count("ERROR: <input>") == 2


def test_a_selector_may_not_cost_too_much() -> None:
    attributes = "device.attributes['a.example.com']"
    cheap = f"{attributes}.exists(a, a == 'x')"
    nested = (
        f"{attributes}.all(a, {attributes}.all(b, {attributes}.all(c, {attributes}.all(d, a+b+c+d == 'x'))))"
    )
    assert refusal(cheap) == ""
    assert refusal(nested) == "Forbidden: too complex, exceeds cost limit"


def test_long_and_deep_selectors_are_refused() -> None:
    assert "Too long" in refusal(f"'{'x' * 10240}' == 'x'")
    assert "recursion limit" in refusal("(" * 1000 + "true" + ")" * 1000)
    assert "recursion limit" in refusal("[" * 1000)
    assert refusal(" && ".join(["device.driver != 'x'"] * 400)) == ""


def test_attributes_that_are_lists_bring_a_function_and_lose_their_type() -> None:
    included = "device.attributes['a.example.com'].ports.includes(1)"
    assert refusal(included, LISTS) == ""
    assert "undeclared reference to 'includes'" in refusal(included)


def test_shared_devices_are_known_where_their_gate_is_on() -> None:
    expression = "device.allowMultipleAllocations == true"
    assert "undefined field" in refusal(expression, Gates.of("1.35"))
    assert refusal(expression, Gates.of("1.35", {"DRAConsumableCapacity": True})) == ""


def test_claims_check_the_selectors_of_requests_and_of_their_alternatives() -> None:
    wrong = [{"cel": {"expression": "true"}}, {"cel": {"expression": "nope"}}, {}]
    requests = [
        {"name": "a", "exactly": {"deviceClassName": "gpu", "selectors": wrong}},
        {"name": "b", "firstAvailable": [{"name": "c", "deviceClassName": "gpu", "selectors": wrong}]},
    ]
    sent = {
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"devices": {"requests": requests}},
    }
    with pytest.raises(Refused) as refused:
        create("ResourceClaim", sent, DEFAULT)
    assert [(cause.field, cause.reason) for cause in refused.value.causes] == [
        ("spec.devices.requests[0].exactly.selectors[1].cel.expression", "FieldValueInvalid"),
        ("spec.devices.requests[0].exactly.selectors[2].cel", "FieldValueRequired"),
        ("spec.devices.requests[1].firstAvailable[0].selectors[1].cel.expression", "FieldValueInvalid"),
        ("spec.devices.requests[1].firstAvailable[0].selectors[2].cel", "FieldValueRequired"),
    ]
