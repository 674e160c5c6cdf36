"""A ResourceClaim is read strictly: whatever it holds, it is understood or refused with a sentence."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dradriver.claims import ClaimError, claim_ref, read_claim
from dradriver.engine import Pools, refresh_all, requests
from dradriver.host import Host
from dradriver.model import ClaimRef, Quantity, json_quantity
from lever import (
    DRIVER,
    LeverBackend,
    LeverConfig,
    LeverOptions,
    RatchetBackend,
    claim_object,
    config,
    lever_config,
    result,
)
from recorded import SHARED

REF = ClaimRef("uid-a", "default", "a")


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Pools:
    directory = tmp_path_factory.mktemp("hardware")
    for n in range(3):
        (directory / f"lever-{n}").touch()
    options = LeverOptions(directory=str(directory))
    made = Pools("n1", [(DRIVER, kind(Host(), options)) for kind in (LeverBackend, RatchetBackend)])
    refresh_all(made.all)
    return made


def configs(pools: Pools, *entries: Any, request: str = "r") -> LeverConfig:
    """Return what the lever's backend gets as the configuration of the one device of a claim."""
    obj = claim_object(REF, [result("lever-0", request=request)], entries)
    (part,) = requests(read_claim(obj, REF), DRIVER, pools)
    return part.request.devices[0].config(LeverConfig)


def refused(pools: Pools, *entries: Any, request: str = "r") -> str:
    with pytest.raises(ClaimError) as error:
        configs(pools, *entries, request=request)
    message = str(error.value)
    assert message.isprintable()
    assert len(message) < 1000
    return message


def unread(obj: object) -> str:
    with pytest.raises(ClaimError) as error:
        read_claim(obj, REF)
    message = str(error.value)
    assert message.isprintable()
    assert len(message) < 1000
    return message


def test_an_allocation_is_read_with_all_that_it_says() -> None:
    full = result(
        "tank-0",
        request="r/sub",
        shareID="0a",
        adminAccess=True,
        consumedCapacity={f"{DRIVER}/water": "1Gi", "taps": 2, "x.example.com/y": None},
        bindingConditions=["a field of a newer server"],
    )
    claim = read_claim(claim_object(REF, [full]), REF)
    (read,) = claim.results
    assert (read.request, read.base_request) == ("r/sub", "r")
    assert (read.driver, read.pool, read.device) == (DRIVER, "n1/lever", "tank-0")
    assert (read.share_id, read.admin) == ("0a", True)
    assert read.consumed == {
        "water": Quantity.parse("1Gi"),
        "taps": Quantity.parse("2"),
        "x.example.com/y": Quantity.parse("0"),
    }
    assert claim_ref(claim_object(REF, [])) == REF


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    obj = copy.deepcopy(claim_object(REF, ["lever-0"], [config(lever_config())]))
    place: Any = obj
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return obj


RESULT = ("status", "allocation", "devices", "results", 0)
AT_RESULT = "status.allocation.devices.results[0]"
VERSIONS = "resource.k8s.io/v1, resource.k8s.io/v1beta2, resource.k8s.io/v1beta1"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("metadata", "uid"), "uid-b", "claim was replaced: its uid is now 'uid-b'"),
        (("metadata", "uid"), "x" * 10_000, "(10000 characters)"),
        (("metadata", "uid"), 5, "claim.metadata.uid: a string is expected, found '5', an integer"),
        (("metadata",), None, "claim.metadata"),
        (("status",), None, "claim is not allocated"),
        (("status", "allocation"), None, "claim is not allocated"),
        (("status", "allocation"), [], "claim.status.allocation: a map is expected"),
        ((*RESULT, "device"), 5, "claim.status.allocation.devices.results[0].device: a string is expected"),
        ((*RESULT, "consumedCapacity"), {"w": "x"}, "results[0].consumedCapacity['w']: quantity 'x'"),
        (RESULT, {}, "missing required field `request`"),
        (("kind",), "Pod", "not a ResourceClaim object"),
        (("apiVersion",), "v1", f"claim.apiVersion: 'v1' is not one of {VERSIONS}"),
        (("apiVersion",), None, f"claim.apiVersion: 'None' is not one of {VERSIONS}"),
        (("apiVersion",), ["resource.k8s.io/v1"], "claim.apiVersion: 'a list of 1 items' is not one of"),
        (("apiVersion",), "resource.k8s.io/v2", "claim.apiVersion: 'resource.k8s.io/v2' is not one of"),
        (
            (*RESULT, "consumedCapacity"),
            {"\ud800": "1"},
            f"{AT_RESULT}.consumedCapacity['\\ud800']: '\\ud800'",
        ),
        ((*RESULT, "shareID"), "a\udfff", f"{AT_RESULT}.shareID: 'a\\udfff' is not Unicode text"),
        ((*RESULT, "pool"), "\udc80", f"{AT_RESULT}.pool: '\\udc80' is not Unicode text"),
    ],
)
def test_a_claim_that_is_not_as_it_should_be_is_refused(
    path: tuple[Any, ...], value: Any, message: str
) -> None:
    assert message in unread(changed(path, value))


@pytest.mark.parametrize("version", VERSIONS.split(", "))
def test_the_versions_with_this_form_of_allocation_are_read(version: str) -> None:
    assert read_claim(changed(("apiVersion",), version), REF).results


@pytest.mark.parametrize("uid", ["", "../a", "a\0b", "\ud800", "x" * 64])
def test_a_claim_without_a_valid_uid_is_refused(uid: str) -> None:
    ref = ClaimRef(uid, "default", "a")
    with pytest.raises(ClaimError, match=r"^claim\.metadata\.uid: uid '.* is not a UID"):
        read_claim(claim_object(ref, ["lever-0"]), ref)


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, [[]], {"kind": []}, {"kind": "ResourceClaim"}])
def test_what_is_no_claim_is_refused(value: object) -> None:
    assert unread(value)


def test_defaults_then_class_then_claim_field_by_field(pools: Pools) -> None:
    of_class = config(lever_config(steps=2, note="class"), source="FromClass")
    of_claim = config(lever_config(steps=3))
    assert configs(pools) == LeverConfig()
    assert configs(pools, of_class) == LeverConfig(steps=2, note="class")
    assert configs(pools, of_class, of_claim) == LeverConfig(steps=3, note="class")
    assert configs(pools, of_claim, of_class) == LeverConfig(steps=3, note="class"), "whatever their order"
    assert configs(pools, of_claim, config(lever_config(steps=1))) == LeverConfig(steps=1)


@pytest.mark.parametrize(
    ("names", "applies"),
    [([], True), (["r"], True), (["r/sub"], True), (["x", "r"], True), (["x"], False), (["r/other"], False)],
)
def test_a_configuration_is_for_named_requests_or_for_all(
    pools: Pools, names: list[str], applies: bool
) -> None:
    found = configs(pools, config(lever_config(steps=2), requests=names), request="r/sub")
    assert found == LeverConfig(steps=2 if applies else 1)


def test_a_configuration_of_another_driver_is_passed_over_whatever_it_is(pools: Pools) -> None:
    assert configs(pools, config("nonsense", driver="gpu.example.com")) == LeverConfig()
    assert configs(pools, {"source": "FromClaim", "requests": ["r"]}) == LeverConfig()


def test_a_configuration_of_another_kind_must_not_name_our_request(pools: Pools) -> None:
    ratchet = {"apiVersion": "dradriver.io/v1alpha1", "kind": "RatchetConfig"}
    assert configs(pools, config(ratchet)) == LeverConfig()
    assert configs(pools, config(ratchet, requests=["x"])) == LeverConfig()
    assert refused(pools, config(ratchet, requests=["r"])) == (
        "status.allocation.devices.config[0].opaque.parameters.kind: RatchetConfig does not fit request 'r', "
        "whose device takes LeverConfig"
    )


AT = "status.allocation.devices.config[0].opaque.parameters"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (None, f"{AT}: an object with apiVersion and kind is expected"),
        ("x", f"{AT}: an object with apiVersion and kind is expected"),
        ({}, f"{AT}.apiVersion: dradriver.io/v1alpha1 is expected, and is missing"),
        (
            lever_config(apiVersion="dradriver.io/v2"),
            f"{AT}.apiVersion: dradriver.io/v1alpha1 is expected, found 'dradriver.io/v2'",
        ),
        (lever_config(kind="Lever"), f"{AT}.kind: 'Lever' is unknown; known are LeverConfig, RatchetConfig"),
        (lever_config(kind=["LeverConfig"]), f"{AT}.kind: 'a list of 1 items' is unknown"),
        (
            lever_config(step=1),
            f"{AT}.step: unknown field 'step'; allowed are checked, cogs, mends, note, steps",
        ),
        (lever_config(steps="1"), f"{AT}.steps: an integer is expected, found '1', a string"),
        (lever_config(steps=1.5), f"{AT}.steps: an integer is expected, found '1.5', a number"),
        (lever_config(steps=True), f"{AT}.steps: an integer is expected, found true"),
        (lever_config(steps=-1), "steps: 0 or more are expected, found -1"),
        (lever_config(cogs=["a", 1]), f"{AT}.cogs[1]: a string is expected, found '1', an integer"),
        (lever_config(**{"x" * 10_000: 1}), "(10000 characters); allowed are"),
        (lever_config(note=None), f"{AT}.note: a string is expected, found nothing (null)"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_path(pools: Pools, parameters: Any, message: str) -> None:
    assert message in refused(pools, config(parameters))


def test_each_entry_is_checked_by_itself(pools: Pools) -> None:
    """A class with a mistake is not excused by a claim that writes over it."""
    wrong = config(lever_config(steps="1"), source="FromClass")
    assert "config[1].opaque.parameters.steps" in refused(pools, config(lever_config(steps=1)), wrong)


LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
QUICK = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def attempt(pools: Pools, obj: object) -> None:
    """Read a claim as Prepare does: anything but a ClaimError fails the test."""
    problem = ""
    try:
        requests(read_claim(obj, REF), DRIVER, pools)
    except ClaimError as error:
        problem = str(error)
    assert len(problem) < 2000


@QUICK
@given(value=JSON)
def test_any_json_as_a_claim_is_understood_or_refused(pools: Pools, value: object) -> None:
    attempt(pools, value)
    attempt(pools, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": value})


PLACES = st.sampled_from(
    [
        ("status",),
        ("status", "allocation"),
        ("status", "allocation", "devices"),
        ("status", "allocation", "devices", "results"),
        RESULT,
        *((*RESULT, name) for name in ("request", "driver", "pool", "device", "shareID", "consumedCapacity")),
        ("status", "allocation", "devices", "config"),
        ("status", "allocation", "devices", "config", 0),
        *(
            ("status", "allocation", "devices", "config", 0, name)
            for name in ("source", "requests", "opaque")
        ),
        ("status", "allocation", "devices", "config", 0, "opaque", "parameters"),
        *(
            ("status", "allocation", "devices", "config", 0, "opaque", "parameters", name)
            for name in ("apiVersion", "kind", "steps", "note", "cogs")
        ),
    ]
)


@QUICK
@given(path=PLACES, value=JSON)
def test_any_json_anywhere_in_a_claim_is_understood_or_refused(
    pools: Pools, path: tuple[Any, ...], value: object
) -> None:
    attempt(pools, changed(path, value))


def test_an_amount_of_another_driver_that_cannot_be_read_is_not_ours_to_judge() -> None:
    foreign = result("gpu-0", driver="gpu.example.com", consumedCapacity={"memory": "80GB"})
    obj = claim_object(REF, [foreign, result("tank-0", consumedCapacity={"water": "1Gi"})])
    assert "quantity '80GB'" in unread(obj)
    theirs, ours = read_claim(obj, REF, DRIVER).results
    assert theirs.consumed == {}
    assert ours.consumed == {"water": Quantity.parse("1Gi")}
    with pytest.raises(ClaimError, match="quantity '80GB'"):
        read_claim(obj, REF, "gpu.example.com")


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"resource.kubernetes.io/pod-claim-name": "gpus"}, "gpus"),
        ({"resource.kubernetes.io/pod-claim-name": "../gpus"}, ""),
        ({"resource.kubernetes.io/pod-claim-name": 5, "x": [1]}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_the_pods_name_of_a_claim_is_read_where_it_is_one(annotations: Any, expected: str) -> None:
    assert read_claim(changed(("metadata", "annotations"), annotations), REF).pod_claim == expected


def recorded_claims() -> list[tuple[str, dict[str, Any]]]:
    """Return claims with an allocation that a real server stored, by the names of the recorded answers."""
    file = SHARED / "vectors/validation/vectors.json"
    if not file.exists():
        pytest.skip(f"{file}: recorded answers not there")
    found = []
    for vector in json.loads(file.read_text())["vectors"]:
        if vector["kind"] == "ResourceClaim" and vector["verb"] == "update-status" and vector["accepted"]:
            status = vector.get("stored") or vector["object"].get("status") or {}
            if status.get("allocation"):
                claim = vector["object"] | {"status": status}
                claim["metadata"] = claim["metadata"] | {"uid": REF.uid}
                found.append((vector["name"], claim))
    return found


def test_whatever_a_server_stored_as_an_allocation_is_read_in_full() -> None:
    claims = recorded_claims()
    assert len(claims) > 40
    for name, claim in claims:
        devices = claim["status"]["allocation"].get("devices") or {}
        read = read_claim(claim, REF)
        stored = devices.get("results") or []
        assert [
            (found.request, found.driver, found.pool, found.device, found.share_id, found.admin)
            for found in read.results
        ] == [
            (
                one["request"],
                one["driver"],
                one["pool"],
                one["device"],
                one.get("shareID"),
                bool(one.get("adminAccess")),
            )
            for one in stored
        ], name
        for found, one in zip(read.results, stored, strict=True):
            amounts = one.get("consumedCapacity") or {}
            assert found.consumed == {key: json_quantity(value) for key, value in amounts.items()}, name
        assert len(read.configs) == len(devices.get("config") or []), name


def test_hostile_strings_stay_out_of_paths(pools: Pools, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    for hostile in ("../../etc/passwd", "a\0b", "x" * 10_000, "\ud800", "$(reboot)", "a/b/c/d"):
        for name in ("request", "pool", "device", "shareID"):
            attempt(pools, changed((*RESULT, name), hostile))
    assert sorted(tmp_path.rglob("*")) == before
