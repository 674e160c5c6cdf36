"""Faults of the stand-in API server, as a client meets them."""

import json
import re
import socket
import ssl
import time
from collections.abc import Iterator

import pytest
import urllib3

from apiserverside import NODES, SLICES, Api, node_body, slice_body
from dradriver.sim.apiserver import ApiServer
from waiting import PATIENCE, eventually


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def api(server: ApiServer) -> Iterator[Api]:
    with Api(server) as client:
        yield client


def test_the_next_requests_fail_as_told(api: Api, server: ApiServer) -> None:
    server.faults.fail(429, 2, method="POST", path="resourceslices$", retry_after=3)
    server.faults.fail(500, path="nodes")
    assert api.get(SLICES).status == 200
    for _ in range(2):
        busy = api.post(SLICES, slice_body())
        assert (busy.status, busy.headers["retry-after"], busy.body["reason"]) == (
            429,
            "3",
            "TooManyRequests",
        )
        assert busy.body["details"]["retryAfterSeconds"] == 3
    assert api.post(SLICES, slice_body()).status == 201
    assert server.faults.pending() == 1
    assert api.get(NODES).status == 500
    assert api.get(NODES).status == 200
    server.faults.fail(403)
    assert api.get(NODES).body["reason"] == "Forbidden"


def test_an_error_may_come_after_the_request_took_effect(api: Api, server: ApiServer) -> None:
    server.faults.fail(504, after=True)
    assert api.post(SLICES, slice_body()).status == 504
    assert api.get(f"{SLICES}/s1").status == 200
    assert [(entry.status, entry.changed) for entry in server.requests.matching("POST")] == [(504, True)]


@pytest.mark.parametrize("after", [True, False])
def test_a_connection_is_dropped_without_an_answer(api: Api, server: ApiServer, after: bool) -> None:
    server.faults.drop(after=after)
    with pytest.raises(urllib3.exceptions.ProtocolError):
        api.post(SLICES, slice_body())
    assert api.get(f"{SLICES}/s1").status == (200 if after else 404)
    assert server.requests.matching("POST")[0].status == 0


def test_an_answer_never_comes(api: Api, server: ApiServer) -> None:
    server.faults.hang(path="nodes$")
    with pytest.raises(urllib3.exceptions.ReadTimeoutError):
        api.pool.request("GET", server.url + NODES, timeout=0.3)
    assert api.get(NODES).status == 200


def test_a_body_breaks_off(api: Api, server: ApiServer) -> None:
    server.faults.truncate(path="slices")
    with pytest.raises(urllib3.exceptions.ProtocolError):
        api.post(SLICES, slice_body())
    assert api.get(f"{SLICES}/s1").status == 200


def test_latency_and_random_errors_are_repeatable(api: Api, server: ApiServer) -> None:
    server.faults.latency, server.faults.jitter = 0.05, 0.01
    start = time.monotonic()
    api.get(SLICES)
    assert time.monotonic() - start >= 0.05
    server.faults.clear()

    def run() -> list[int]:
        server.faults.error_rate = 0.3
        server.faults.seed(7)
        statuses = [api.get(SLICES).status for _ in range(60)]
        server.faults.clear()
        return statuses

    first = run()
    assert first == run()
    assert set(first) == {200, 429, 500, 503}
    assert 8 < sum(status != 200 for status in first) < 30


def test_half_of_the_failing_writes_have_taken_effect(api: Api, server: ApiServer) -> None:
    server.faults.error_rate = 1.0
    for number in range(40):
        assert api.post(SLICES, slice_body(f"s{number}")).status in {429, 500, 503}
    taken = server.requests.writes()["ResourceSlice"]
    server.faults.clear()
    assert 8 < taken < 32
    assert len(api.get(SLICES).body["items"]) == taken


def test_connections_are_refused_for_a_time(api: Api, server: ApiServer) -> None:
    api.post(SLICES, slice_body())
    url = server.url
    server.faults.refuse()
    assert server.faults.refusing
    for _ in range(2):
        with pytest.raises((urllib3.exceptions.NewConnectionError, urllib3.exceptions.ProtocolError)):
            api.get(SLICES)
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port(url)), 5):
        pass
    server.faults.accept()
    assert server.url == url
    assert len(api.get(SLICES).body["items"]) == 1
    server.faults.refuse(0.2)
    eventually(lambda: not server.faults.refusing)
    assert api.get(SLICES).status == 200
    server.faults.refuse(keep_connections=True)
    assert api.get(SLICES).status == 200
    server.faults.clear()
    assert not server.faults.refusing


def test_the_port_stays_its_own_while_connections_are_refused(server: ApiServer) -> None:
    server.faults.refuse()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port(server.url)))


def port(url: str) -> int:
    found = re.search(r":(\d+)$", url)
    assert found
    return int(found[1])


def test_watches_end_when_their_connections_are_cut(api: Api, server: ApiServer) -> None:
    with api.watch(SLICES) as events:
        eventually(lambda: server.faults.watches.open == 1)
        server.faults.drop_connections()
        assert events.ended.wait(PATIENCE)
    with api.watch(SLICES) as events:
        server.faults.refuse(keep_connections=True)
        server.store.create(slice_body())
        assert events.names(1) == [("ADDED", "s1")]


def test_slices_are_wiped_as_a_kubelet_does(api: Api, server: ApiServer) -> None:
    for name, node, driver in (("s1", "a", "x.io"), ("s2", "a", "y.io"), ("s3", "b", "x.io")):
        api.post(SLICES, slice_body(name, node, driver))
    with api.watch(f"{SLICES}?resourceVersion={server.store.version}") as events:
        assert server.faults.wipe_slices("a", "x.io") == 1
        assert server.faults.wipe_slices("a") == 1
        assert events.names(2) == [("DELETED", "s1"), ("DELETED", "s2")]
    assert server.faults.wipe_slices() == 1


def test_a_handshake_breaks_and_the_next_one_works() -> None:
    with ApiServer(tls=True) as server, Api(server) as api:
        assert server.url.startswith("https://")
        assert api.get(SLICES).status == 200
        server.faults.break_handshakes()
        api.pool.clear()
        with pytest.raises(urllib3.exceptions.SSLError):
            api.get(SLICES)
        assert api.get(SLICES).status == 200
        with api.watch(SLICES) as events:
            api.post(SLICES, slice_body())
            assert events.names(1) == [("ADDED", "s1")]
            eventually(lambda: server.faults.watches.open == 1)
            server.faults.watches.close()
            assert events.ended.wait(PATIENCE)
        context = ssl.create_default_context(cafile=str(server.certificate))
        with (
            socket.create_connection(("127.0.0.1", port(server.url)), 5) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            assert secured.version() in {"TLSv1.2", "TLSv1.3"}


def test_gates_and_version_are_switched_while_it_runs(api: Api, server: ApiServer) -> None:
    body = slice_body()
    body["spec"]["devices"][0]["taints"] = [{"key": "a", "effect": "NoSchedule"}]
    assert "taints" in api.post(SLICES, body).body["spec"]["devices"][0]
    assert api.get("/version").body["minor"] == "36"
    server.upgrade("1.35")
    assert api.get("/version").body["gitVersion"] == "v1.35.0"
    again = {**body, "metadata": {"name": "s2"}}
    assert "taints" not in api.post(SLICES, again).body["spec"]["devices"][0]
    # What was stored before stays as it is.
    assert "taints" in api.get(f"{SLICES}/s1").body["spec"]["devices"][0]
    server.upgrade(gates={"DRADeviceTaints": True})
    assert "taints" in api.put(f"{SLICES}/s2", again).body["spec"]["devices"][0]
    with pytest.raises(ValueError, match=r"1\.20"):
        server.upgrade("1.20")
    with pytest.raises(ValueError, match="NoSuchGate"):
        server.upgrade(gates={"NoSuchGate": True})


def raw(server: ApiServer, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port(server.url)), 5) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer


def test_what_is_no_http_gets_an_answer_or_none(server: ApiServer) -> None:
    assert raw(server, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(server, b"GET / HTTP/1.1\r\nbroken\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(server, b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(server, b"GET /" + b"a" * 100_000).startswith(b"HTTP/1.1 431")
    assert raw(server, b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nshort") == b""
    chunked = b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert raw(server, chunked + b"zz\r\n").startswith(b"HTTP/1.1 400")
    assert raw(server, b"GET /version HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert raw(server, b"") == b""


def test_requests_may_be_chunked_and_come_in_pieces(server: ApiServer) -> None:
    body = json.dumps(node_body()).encode()
    head = f"POST {NODES} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port(server.url)), 5) as connection:
        connection.sendall(head[:20].encode())
        connection.sendall(head[20:].encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        for piece in (body[:10], body[10:]):
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 201")
        # Two requests at once on the same connection are answered in turn.
        connection.sendall(2 * f"GET {NODES}/node-a HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 2:
            answers += connection.recv(65536)
