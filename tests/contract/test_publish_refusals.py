"""Slices that an API server does not take, or stores otherwise than they were sent."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from dradriver.kube import Client
from dradriver.model import CounterSet, Device, PoolContent, Quantity
from dradriver.publish import ApiPublisher, PublishError
from dradriver.sim.apiserver import ApiError, ApiServer, User
from publishing import DRIVER, NODE, POOL, Daemon, client_of, gpus, make_node, names, slices, until, writes

ONE = Quantity.from_int(1)
Object = Mapping[str, Any] | None


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        make_node(server)
        yield server


@pytest.fixture
def client(server: ApiServer) -> Iterator[Client]:
    with client_of(server) as client:
        yield client


@pytest.fixture
def publisher(client: Client) -> ApiPublisher:
    return ApiPublisher(client, NODE, [DRIVER])


def no_model_b(user: User, verb: str, new: Object, old: Object) -> str | None:
    """Refuse slices with a device of model b, as a policy does: without telling which device that is."""
    del user, verb, old
    spec = new["spec"] if new and new["kind"] == "ResourceSlice" else {}
    if any(
        device.get("attributes", {}).get("model") == {"string": "b"} for device in spec.get("devices", ())
    ):
        return "model b is not wanted here"
    return None


def no_model_b_by_field(user: User, verb: str, new: Object, old: Object) -> str | None:
    """Refuse the same, as validation does: each device is named."""
    spec = new["spec"] if new and new["kind"] == "ResourceSlice" else {}
    causes = [
        {
            "reason": "FieldValueInvalid",
            "field": f"spec.devices[{index}].attributes[model].string",
            "message": 'Invalid value: "b": not wanted here',
        }
        for index, device in enumerate(spec.get("devices", ()))
        if device.get("attributes", {}).get("model") == {"string": "b"}
    ]
    if causes:
        raise ApiError(422, "ResourceSlice is invalid", reason="Invalid", details={"causes": causes})
    return None


BAD = Device("gpu-0101", attributes={"model": "b"})
MANY = (*gpus(200)[:101], BAD, *gpus(200)[102:])
GOOD = {device.name for device in MANY} - {BAD.name}


@pytest.mark.parametrize("admit", [no_model_b, no_model_b_by_field])
def test_a_refused_device_is_left_out_and_all_others_are_published(
    server: ApiServer, publisher: ApiPublisher, admit: Any
) -> None:
    server.admit = admit
    result = publisher.publish(DRIVER, NODE, POOL, PoolContent(MANY))
    assert names(server) == GOOD
    assert [one.name for one in result.left_out] == [BAD.name]
    assert "not wanted here" in str(result.left_out[0])
    assert len(server.requests.matching("POST")) < 40


def test_a_refused_device_is_tried_again_when_it_changes_and_not_before(
    server: ApiServer, publisher: ApiPublisher
) -> None:
    server.admit = no_model_b_by_field
    publisher.publish(DRIVER, NODE, POOL, PoolContent(MANY))
    server.requests.clear()
    others = (*MANY[:-1], Device("gpu-other"))
    for _ in range(3):
        result = publisher.publish(DRIVER, NODE, POOL, PoolContent(others))
        assert [one.name for one in result.left_out] == [BAD.name]
    assert len(server.requests) == 1
    mended = (*gpus(200)[:-1], Device("gpu-other"))
    assert publisher.publish(DRIVER, NODE, POOL, PoolContent(mended)).left_out == ()
    assert names(server) == {device.name for device in mended}
    assert len(server.requests) == 2


def test_a_device_that_turns_bad_is_taken_out_of_its_slice(
    server: ApiServer, publisher: ApiPublisher
) -> None:
    publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(200)))
    server.admit = no_model_b
    server.requests.clear()
    result = publisher.publish(DRIVER, NODE, POOL, PoolContent(MANY))
    assert names(server) == GOOD
    assert [one.name for one in result.left_out] == [BAD.name]
    assert writes(server) == 1


def test_a_refused_counter_set_takes_along_what_draws_on_it(
    server: ApiServer, publisher: ApiPublisher
) -> None:
    def refuse(user: User, verb: str, new: Object, old: Object) -> str | None:
        sets = new["spec"].get("sharedCounters", ()) if new else ()
        return "not this one" if any(one["name"] == "card-1" for one in sets) else None

    server.admit = refuse
    content = PoolContent(
        tuple(Device(f"gpu-{n}", consumes={f"card-{n}": {"memory": ONE}}) for n in range(3)),
        tuple(CounterSet(f"card-{n}", {"memory": ONE}) for n in range(3)),
    )
    result = publisher.publish(DRIVER, NODE, POOL, content)
    assert names(server) == {"gpu-0", "gpu-2"}
    assert {one.name for one in result.left_out} == {"card-1", "gpu-1"}


def test_what_is_refused_whatever_is_in_it_is_an_error_that_tells_why(
    server: ApiServer, publisher: ApiPublisher
) -> None:
    publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(1)))
    server.admit = lambda user, verb, new, old: "nobody may write slices"
    with pytest.raises(PublishError, match="nobody may write slices"):
        publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(2)))
    assert names(server) == {"gpu-0000"}


def test_a_server_that_takes_no_slice_at_all_teaches_nothing(
    server: ApiServer, publisher: ApiPublisher
) -> None:
    server.admit = lambda user, verb, new, old: "nobody may write slices"
    with pytest.raises(PublishError, match=r"no slice of this node .* nobody may write slices"):
        publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(2)))


def test_what_somebody_in_between_changes_is_adopted_and_said(server: ApiServer, client: Client) -> None:
    """A webhook that drops an attribute must not make a loop."""

    def drop_model(user: User, verb: str, new: Object, old: Object) -> str | None:
        for device in new["spec"].get("devices", ()) if new and "spec" in new else ():
            device.get("attributes", {}).pop("model", None)
        return None

    server.admit = drop_model
    with Daemon(client) as daemon:
        daemon.want(*gpus(100, attributes={"model": "a", "memory": 80}))
        until(lambda: daemon.settled)
        calls = daemon.calls
        until(lambda: daemon.calls >= calls + 3)
        assert writes(server) == 2
        first, second = daemon.results[POOL].warnings
        assert "stored otherwise than it was sent: devices[gpu-0000].attributes.model" in first
        assert "devices[gpu-0064].attributes.model" in second
        daemon.want(*gpus(99, attributes={"model": "a", "memory": 80}))
        until(lambda: daemon.settled)
        assert writes(server) == 3
        (_, edited) = slices(server)
        edited["spec"]["devices"].pop()
        server.store.replace(edited)
        until(lambda: len(names(server) or ()) == 99)


def test_a_missing_permission_is_named(server: ApiServer, publisher: ApiPublisher) -> None:
    server.faults.fail(403, 99, method="POST", path="resourceslices")
    with pytest.raises(PublishError, match=r'resources \["resourceslices"\], verbs \["create"\]'):
        publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(1)))


def test_a_server_without_the_resource_is_named(server: ApiServer, publisher: ApiPublisher) -> None:
    server.faults.fail(404, 99, path="resourceslices")
    with pytest.raises(PublishError, match=r"Kubernetes 1\.34 or later"):
        publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(1)))
