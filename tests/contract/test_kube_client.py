"""Requests over real sockets: what is sent, how often, and what the server's answer becomes."""

import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dradriver.clock import Clock
from dradriver.kube import (
    Client,
    Connection,
    KubeError,
    StatusError,
    StoppedError,
    UnreachableError,
    claim_path,
    in_cluster,
    slice_path,
)
from kubeserver import NODE, TOKEN, Answer, Request, Server, Wire, page, serving, silent, soon, status, thing
from waiting import eventually


def test_an_object_is_read() -> None:
    with serving(lambda request, wire: wire.send(thing("n1", 7))) as (server, client):
        assert client.get(NODE) == {"metadata": {"name": "n1", "resourceVersion": "7"}}
        (request,) = server.requests
        assert (request.method, request.path, request.query) == ("GET", NODE, {})
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        assert request.headers["Accept"] == "application/json"
        assert request.headers["Accept-Encoding"] == "identity"
        assert request.headers["User-Agent"].startswith("dradriver/")
        assert "(linux/" in request.headers["User-Agent"]


def test_what_is_written_is_plain_json() -> None:
    body = {"spec": {"devices": [{"name": "gpu-0", "taints": []}]}, "n": 2**40, "text": 'ä"\n'}
    with serving(lambda request, wire: wire.send(request.json if request.body else {})) as (server, client):
        path = slice_path("a-1")
        assert client.create("/slices", body, {"dryRun": "All"}) == body
        assert client.replace(path, body) == body
        assert client.delete(path, body={"preconditions": {"uid": "u"}}) == {"preconditions": {"uid": "u"}}
        assert client.delete(path) == {}
        assert client.apply(claim_path("team-a", "c", "status"), body, manager="gpu.dradriver.io") == body
        create, replace, delete, bare, apply = server.requests
        assert (create.method, create.query) == ("POST", {"dryRun": "All"})
        assert create.headers["Content-Type"] == "application/json"
        assert replace.method == "PUT"
        assert delete.method == bare.method == "DELETE"
        assert bare.body == b""
        assert apply.method == "PATCH"
        assert apply.path == "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/c/status"
        assert apply.query == {"fieldManager": "gpu.dradriver.io", "force": "true"}
        assert apply.headers["Content-Type"] == "application/apply-patch+yaml"


def test_a_refusal_is_told_with_its_causes() -> None:
    causes = [
        {"field": "spec.devices[3]", "reason": "FieldValueInvalid", "message": "bad\nname"},
        "nonsense",
    ]

    def answer(request: Request, wire: Wire) -> None:
        wire.send(status(422, "Invalid", "it is\ninvalid", causes=causes), 422)

    with serving(answer) as (server, client), pytest.raises(StatusError) as caught:
        client.create("/slices", {})
    error = caught.value
    assert (error.code, error.reason) == (422, "Invalid")
    assert str(error) == "422 Invalid: it is invalid"
    assert [(cause.field, cause.reason, cause.message) for cause in error.causes] == [
        ("spec.devices[3]", "FieldValueInvalid", "bad name")
    ]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [("7", {}, 7.0), (None, {"retryAfterSeconds": 3}, 3.0), (None, {}, None), ("soon", {}, None)],
)
def test_a_busy_server_says_when_to_come_back(
    header: str | None, details: dict[str, Any], expected: float | None
) -> None:
    def answer(request: Request, wire: Wire) -> None:
        headers = {"Retry-After": header} if header else None
        wire.send(status(429, "TooManyRequests", **details), 429, headers)

    with serving(answer) as (server, client), pytest.raises(StatusError) as caught:
        client.get(NODE)
    assert caught.value.retry_after == expected
    assert len(server.requests) == 1


def test_what_a_proxy_says_in_html_is_left_out() -> None:
    with serving(lambda request, wire: wire.send(b"<html>" + b"x" * 5000, 502)) as (_, client):
        with pytest.raises(StatusError) as caught:
            client.get(NODE)
        assert str(caught.value) == "502: Bad Gateway"


def test_a_redirect_is_not_followed() -> None:
    with serving() as (elsewhere, _):
        answer = lambda request, wire: wire.send({}, 307, {"Location": elsewhere.url})  # noqa: E731
        with serving(answer) as (_, client), pytest.raises(StatusError) as caught:
            client.get(NODE)
        assert caught.value.code == 307
        assert elsewhere.requests == []


def test_connections_are_kept_and_shared() -> None:
    def answer(request: Request, wire: Wire) -> None:
        time.sleep(0.01)
        wire.send({})

    with serving(answer, qps=1000, burst=1000) as (server, client), ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: client.get(NODE), range(100)))
        assert len(server.requests) == 100
        assert server.accepted <= 8


def test_a_request_ends_with_its_stop_and_with_the_client() -> None:
    with serving(silent) as (server, client), ThreadPoolExecutor(2) as threads:
        stop = threading.Event()
        stopped = threads.submit(client.get, NODE, stop=stop)
        closed = threads.submit(client.get, NODE)
        eventually(lambda: len(server.requests) == 2)
        began = time.monotonic()
        stop.set()
        with pytest.raises(StoppedError):
            stopped.result()
        assert time.monotonic() - began < 2
        assert not closed.done()
        client.close()
        with pytest.raises(StoppedError):
            closed.result()
        with pytest.raises(StoppedError):
            client.get(NODE)


def test_no_more_requests_a_second_than_allowed() -> None:
    clock = Clock(speed=10)
    with serving(clock=clock, qps=10, burst=5) as (server, client):
        began = clock.now()
        for _ in range(25):
            client.get(NODE)
        assert clock.now() - began >= 1.9
    with serving(qps=0.1, burst=1) as (server, client):
        client.get(NODE)
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=r"not sent: at most 0\.1 requests a second"):
            client.get(NODE, deadline=soon(client, 5))
        assert time.monotonic() - began < 4, "waiting would have been in vain"
        assert len(server.requests) == 1


def test_an_address_may_be_one_of_ipv6() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with listener, ThreadPoolExecutor(1) as threads:
        client = Client(Connection(f"http://[::1]:{listener.getsockname()[1]}"))
        answer = threads.submit(client.get, NODE)
        sock, _ = listener.accept()
        with sock:
            assert b"\r\nHost: [::1]:" in sock.recv(1 << 16)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            assert answer.result() == {}
        client.close()


def test_requests_are_observed() -> None:
    seen: list[tuple[str, int]] = []

    def observed(verb: str, code: int, seconds: float) -> None:
        assert 0 <= seconds < 60
        seen.append((verb, code))

    def answer(request: Request, wire: Wire) -> None:
        if request.method == "DELETE":
            wire.cut()
        elif request.method == "PUT":
            wire.refuse(409, "Conflict")
        else:
            wire.send(page() if request.path == "/slices" else {})

    with serving(answer, observed=observed) as (_, client):
        client.get(NODE)
        client.list("/slices")
        client.create("/slices", {})
        client.apply("/x", {}, manager="m")
        with pytest.raises(KubeError):
            client.replace("/x", {})
        with pytest.raises(KubeError):
            client.delete("/x")
    assert seen == [
        ("get", 200),
        ("list", 200),
        ("create", 200),
        ("patch", 200),
        ("update", 409),
        ("delete", 0),
    ]


def test_warnings_of_the_server_are_logged_for_debugging_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dradriver")
    warn = {"Warning": '299 - "v1beta1 is deprecated"'}
    with serving(lambda request, wire: wire.send({}, 200, warn)) as (_, client):
        client.get(NODE)
    (record,) = [record for record in caplog.records if "deprecated" in record.getMessage()]
    assert record.levelno == logging.DEBUG


def demanding(token: str) -> Answer:
    def answer(request: Request, wire: Wire) -> None:
        if request.headers.get("Authorization") == f"Bearer {token}":
            wire.send({"fine": True})
        else:
            wire.refuse(401, "Unauthorized", "Unauthorized")

    return answer


class Rotating(Connection):
    """Another token each time that one was refused."""

    def __init__(self, server: str, tokens: list[str]) -> None:
        super().__init__(server, token=tokens[0])
        self._tokens = tokens[1:]
        self.asked = 0

    def renewed(self, used: Any, limits: Any) -> Any:
        self.asked += 1
        if self._tokens:
            self._access = Connection(self.server, token=self._tokens.pop(0)).access(limits)
        return self._access


def test_after_a_401_credentials_that_have_changed_are_tried_once() -> None:
    with Server(demanding("three")) as server:
        connection = Rotating(server.url, ["one", "two", "three"])
        client = Client(connection)
        with pytest.raises(StatusError) as caught:
            client.get(NODE)
        assert caught.value.code == 401
        assert client.get(NODE) == {"fine": True}
        assert len(server.requests) == 4
        server.answer = demanding("four")
        with pytest.raises(StatusError):
            client.get(NODE)
        assert len(server.requests) == 5, "the same credentials are not tried twice"
        client.close()


def test_names_cannot_leave_their_place_in_a_path() -> None:
    assert (
        claim_path("a/../b", "c?x=1")
        == "/apis/resource.k8s.io/v1/namespaces/a%2F..%2Fb/resourceclaims/c%3Fx%3D1"
    )
    with serving() as (server, client):
        client.get(claim_path("a/../b", "c?x=1#f"))
        assert (
            server.requests[0].path
            == "/apis/resource.k8s.io/v1/namespaces/a%2F..%2Fb/resourceclaims/c%3Fx%3D1%23f"
        )
    for name in ("", ".", ".."):
        with pytest.raises(ValueError, match="part of a path"):
            claim_path("default", name)


def test_a_body_that_large_goes_through() -> None:
    body = {"text": "x" * 3_000_000}
    with serving(lambda request, wire: wire.send(request.json)) as (_, client):
        assert client.create("/slices", body) == body
        assert json.dumps(body)


def test_outside_of_a_pod_there_are_no_credentials_of_one(tmp_path: Path) -> None:
    with pytest.raises(KubeError, match="not in a pod"):
        in_cluster(tmp_path, {})


def test_an_urgent_request_does_not_wait_for_its_turn() -> None:
    answer: Answer = lambda _, wire: wire.send(thing("n1", 7))  # noqa: E731
    with serving(answer, qps=0.001, burst=1) as (server, client):
        for urgent in (True, False, True):
            client.get(NODE, urgent=urgent)
        with pytest.raises(UnreachableError, match="not sent"):
            client.get(NODE, deadline=soon(client, 5))
        assert len(server.requests) == 3
