"""Answers over real sockets that are bad, late, endless or missing: each is one error in one line, and in time."""

import itertools
import logging
import socket
import time
from contextlib import suppress

import pytest

from dradriver.clock import SYSTEM
from dradriver.kube import (
    Client,
    Connection,
    KubeError,
    UnreachableError,
)
from dradriver.kube import transport as transport_module
from dradriver.kube.limits import Limits
from dradriver.kube.sockets import dial
from kubeserver import (
    NODE,
    TOKEN,
    Answer,
    Request,
    Server,
    Wire,
    cut_at_once,
    descriptors,
    serving,
    silent,
    soon,
)
from waiting import eventually


def trickle(request: Request, wire: Wire) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000:
        if wire.stopping.wait(0.02):
            return
        wire.raw(bytes([byte]))


def trickle_body(request: Request, wire: Wire) -> None:
    wire.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    trickle(request, wire)


def trickle_chunk_size(request: Request, wire: Wire) -> None:
    wire.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(1000):
        if wire.stopping.wait(0.02):
            return
        wire.raw(b"0")


@pytest.mark.parametrize("answer", [silent, trickle, trickle_body, trickle_chunk_size])
def test_the_deadline_is_kept_however_slowly_the_server_answers(answer: Answer) -> None:
    with serving(answer) as (_, client):
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=r"no whole answer within 0\.(5|4\d+) s"):
            client.get(NODE, deadline=soon(client))
        assert 0.45 < time.monotonic() - began < 5


def test_a_server_that_does_not_accept_is_left_after_the_deadline() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        address = sock.getsockname()
        with socket.create_connection(address), socket.socket() as queued:
            queued.setblocking(False)
            queued.connect_ex(address)  # the queue is full now: further ones get no answer
            client = Client(Connection(f"http://127.0.0.1:{address[1]}"))
            with pytest.raises(UnreachableError, match="within"):
                client.get(NODE, deadline=soon(client))
            client.close()


def test_the_kernel_looks_after_connections_of_which_nothing_is_heard() -> None:
    with Server() as server, Limits(SYSTEM, SYSTEM.now() + 10), dial("127.0.0.1", server.port) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 15
        assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000


def test_of_several_addresses_one_is_enough() -> None:
    with Server() as server:  # it listens at one address of the two that a name may have
        client = Client(Connection(f"http://localhost:{server.port}"))
        assert client.get(NODE) == {}
        client.close()


def test_nobody_there() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        client = Client(Connection(url, token=TOKEN))
        with pytest.raises(UnreachableError) as caught:
            client.get(NODE)
        assert str(caught.value) == f"{url}: connection refused"
        client.close()


def test_an_unknown_host() -> None:
    client = Client(Connection("http://no-such-host.invalid", token=TOKEN))
    with pytest.raises(UnreachableError, match=r"http://no-such-host\.invalid: "):
        client.get(NODE)
    client.close()


def too_long(request: Request, wire: Wire) -> None:
    wire.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
    wire.silence()


def endless(request: Request, wire: Wire) -> None:
    while not wire.stopping.is_set():
        wire.chunk(b"[" + b"1," * 30_000)


@pytest.mark.parametrize("answer", [too_long, endless])
def test_an_answer_that_is_too_large_is_refused(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "MAX_ANSWER_BYTES", 1 << 20)
    with serving(answer) as (_, client), pytest.raises(UnreachableError, match="at most 1048576"):
        client.get(NODE)


def truncated(request: Request, wire: Wire) -> None:
    wire.raw(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"metadata":')
    wire.cut()


def truncated_chunk(request: Request, wire: Wire) -> None:
    wire.chunk(b'{"metadata":')
    wire.raw(b"ff\r\nabc")
    wire.cut()


def without_end(request: Request, wire: Wire) -> None:
    wire.chunk(b'{"metadata":{}}')
    wire.cut()


def garbage(request: Request, wire: Wire) -> None:
    wire.send(b'{"a": \xff}')


def no_http(request: Request, wire: Wire) -> None:
    wire.raw(b"SSH-2.0-OpenSSH_9.2\r\n" * 3)
    wire.cut()


def compressed(request: Request, wire: Wire) -> None:
    wire.send(b"\x1f\x8b", 200, {"Content-Encoding": "gzip"})


@pytest.mark.parametrize(
    "answer",
    [truncated, truncated_chunk, without_end, garbage, no_http, compressed, cut_at_once],
)
def test_an_answer_that_is_none_is_told_in_one_line(answer: Answer) -> None:
    with serving(answer) as (server, client):
        with pytest.raises(UnreachableError) as caught:
            client.create("/slices", {})
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400
        assert len(server.requests) == 1


def first_then(first: Answer, later: Answer) -> Answer:
    """Answer the first request on each connection in one way, all further ones in another."""
    peers = set()

    def answer(request: Request, wire: Wire) -> None:
        seen = request.peer in peers
        peers.add(request.peer)
        (later if seen else first)(request, wire)

    return answer


def fine(request: Request, wire: Wire) -> None:
    wire.send({"fine": True})


def test_a_read_on_a_connection_that_was_closed_meanwhile_is_repeated_at_once() -> None:
    with serving(first_then(fine, cut_at_once)) as (server, client):
        client.get(NODE)
        assert client.get(NODE) == {"fine": True}
        assert server.accepted == 2
        assert len(server.requests) == 3


def test_a_write_that_may_have_been_executed_is_not_repeated() -> None:
    with serving(first_then(fine, cut_at_once)) as (server, client):
        client.create("/slices", {})
        with pytest.raises(UnreachableError):
            client.create("/slices", {})
        assert len(server.requests) == 2


def test_a_write_on_a_connection_known_to_be_closed_goes_out_on_a_new_one() -> None:
    with serving() as (server, client):
        client.create("/slices", {})
        server.hang_up()
        eventually(lambda: not server.open)
        client.create("/slices", {})
        assert len(server.requests) == 2
        assert server.accepted == 2


def test_a_fresh_connection_that_is_cut_is_not_tried_again() -> None:
    with serving(cut_at_once) as (server, client):
        with pytest.raises(UnreachableError, match="closed"):
            client.get(NODE)
        assert len(server.requests) == 1


def test_the_token_is_in_no_message_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told = []
    answers: list[Answer] = [
        cut_at_once, garbage, truncated, compressed, no_http,
        lambda request, wire: wire.refuse(401, "Unauthorized"),
        lambda request, wire: wire.refuse(403, "Forbidden"),
    ]  # fmt: skip
    for answer in answers:
        with serving(answer) as (_, client):
            with pytest.raises(KubeError) as caught:
                client.get(NODE)
            told += [str(caught.value), repr(caught.value), repr(caught.value.__cause__), repr(client)]
    for token in (f"{TOKEN}\nX-Evil: 1", f"{TOKEN}\x00", f"{TOKEN}\u2028x"):
        with pytest.raises(KubeError, match="cannot stand in a header") as caught:
            Connection("http://127.0.0.1:1", token=token)
        told.append(str(caught.value))
    assert not [text for text in (*told, caplog.text) if TOKEN in text]


def test_no_descriptor_is_left_over() -> None:
    ways = itertools.cycle((cut_at_once, truncated, garbage, fine, no_http, without_end))

    def answer(request: Request, wire: Wire) -> None:
        next(ways)(request, wire)

    def go_on(server: Server, client: Client, requests: int) -> int:
        for _ in range(requests):
            with suppress(KubeError):
                client.get(NODE)
        server.hang_up()
        eventually(lambda: not server.open)
        return descriptors()

    with serving(answer, qps=10_000, burst=10_000) as (server, client):
        before = go_on(server, client, 20)
        go_on(server, client, 300)
        eventually(lambda: descriptors() <= before + 1)
        assert server.accepted > 200
