"""Events on the Node: written beside the work, never in its way."""

import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dradriver.clock import SYSTEM, Clock
from dradriver.kube import EVENTS, Client, Connection, EventRecorder
from dradriver.kube import events as events_module
from kubeserver import Answer, Request, Server, Wire, allow_time
from publishing import Hurried
from waiting import PATIENCE, eventually

UID = "0b6a7e5e-6d0c-4a55-9c3b-1f0f6a2f9d10"


@contextmanager
def recording(
    answer: Answer, clock: Clock = SYSTEM, node: str = "n1.example.com"
) -> Iterator[tuple[Server, EventRecorder, threading.Event]]:
    with Server(answer) as server:
        client = Client(Connection(server.url, token="secret-token"), clock=clock)
        recorder = EventRecorder(client, node, clock=clock)
        stop = threading.Event()
        thread = threading.Thread(target=recorder.run, args=(stop,))
        thread.start()
        try:
            yield server, recorder, stop
        finally:
            stop.set()
            thread.join(PATIENCE)
            assert not thread.is_alive()
            client.close()


def storing(request: Request, wire: Wire) -> None:
    wire.send({"metadata": {"name": "n1", "uid": UID}} if request.method == "GET" else request.json, 200)


def written(server: Server) -> list[dict[str, Any]]:
    return [request.json for request in list(server.requests) if request.method == "POST"]


def test_an_event_is_about_the_node() -> None:
    with recording(storing) as (server, recorder, _):
        recorder.record("CountersOff", "no partitions\nare published", warning=True)
        eventually(lambda: written(server))
        (event,) = written(server)
    assert [(request.method, request.path) for request in server.requests] == [
        ("GET", "/api/v1/nodes/n1.example.com"),
        ("POST", EVENTS),
    ]
    assert re.fullmatch(r"n1\.example\.com\.[0-9a-f]{16}", event["metadata"].pop("name"))
    assert event.pop("firstTimestamp") == event["lastTimestamp"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", event.pop("lastTimestamp"))
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": "n1.example.com", "uid": UID},
        "type": "Warning",
        "reason": "CountersOff",
        "message": "no partitions are published",
        "source": {"component": "dradriver", "host": "n1.example.com"},
        "reportingComponent": "dradriver",
        "reportingInstance": "n1.example.com",
        "count": 1,
    }


def test_the_same_is_written_once_an_hour() -> None:
    clock = Hurried()
    with recording(storing, clock) as (server, recorder, _):
        for _ in range(50):
            recorder.record("Reason", "message")
        recorder.record("Reason", "another message")
        recorder.record("Reason", "message", warning=True)
        eventually(lambda: len(written(server)) == 3)
        clock.run_at(3000)
        clock.wait(threading.Event(), 3700)
        clock.run_at(1)
        recorder.record("Reason", "message")
        eventually(lambda: len(written(server)) == 4)
    assert len({event["metadata"]["name"] for event in written(server)}) == 4
    assert [event["type"] for event in written(server)] == ["Normal", "Normal", "Warning", "Normal"]


def test_events_wait_for_a_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allow_time(monkeypatch)
    caplog.set_level(logging.INFO, "dradriver")
    clock = Clock(speed=100)
    with recording(lambda request, wire: wire.cut(), clock) as (server, recorder, _):
        recorder.record("Reason", "first")
        recorder.record("Reason", "second")
        clock.wait(threading.Event(), 200)
        assert 3 <= len(server.requests) <= 30
        server.answer = storing
        eventually(lambda: len(written(server)) >= 2)
        eventually(lambda: len(caplog.records) == 2)
    assert [event["message"] for event in written(server)] == ["first", "second"]
    lost, found = [record.getMessage() for record in caplog.records]
    assert lost.startswith("events on node n1.example.com cannot be written: http://")
    assert found == "events on node n1.example.com are written again"


def test_an_event_whose_answer_was_lost_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_time(monkeypatch)
    names: list[str] = []

    def forgetful(request: Request, wire: Wire) -> None:
        if request.method == "GET":
            storing(request, wire)
            return
        names.append(request.json["metadata"]["name"])
        if len(names) == 1:
            wire.cut()
        else:
            wire.refuse(409, "AlreadyExists")

    clock = Clock(speed=20)
    with recording(forgetful, clock) as (_, recorder, _):
        recorder.record("Reason", "message")
        eventually(lambda: len(names) == 2)
        clock.wait(threading.Event(), 10)
    assert len(names) == 2
    assert len(set(names)) == 1


def test_what_the_server_refuses_is_dropped_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allow_time(monkeypatch)
    caplog.set_level(logging.INFO, "dradriver")
    clock = Clock(speed=50)
    with recording(lambda request, wire: wire.refuse(403, "Forbidden"), clock) as (server, recorder, _):
        for number in range(5):
            recorder.record("Reason", f"message {number}")
        eventually(lambda: len(written(server)) == 5)
        clock.wait(threading.Event(), 30)
        assert len(written(server)) == 5
        assert {event["involvedObject"]["uid"] for event in written(server)} == {"n1.example.com"}
    (record,) = caplog.records
    assert record.getMessage() == "events on node n1.example.com cannot be written: 403 Forbidden: no"


def test_recording_costs_nothing_where_nobody_writes() -> None:
    client = Client(Connection("http://127.0.0.1:1"))
    recorder = EventRecorder(client, "n1")
    for number in range(10 * events_module.MAX_WAITING):
        recorder.record("Reason", f"message {number}")
    assert len(recorder._waiting) == events_module.MAX_WAITING
    for number in range(3000):
        recorder._waiting.clear()
        recorder.record("Reason", f"other {number}")
    assert len(recorder._last) <= 1000
    client.close()


def test_long_and_odd_texts_are_made_to_fit() -> None:
    node = "n" * 60 + "." + "m" * 60 + "." + "o" * 60 + "." + "p" * 53 + ".q"
    with recording(storing, node=node) as (server, recorder, _):
        recorder.record("R" * 500, "x" * 5000 + "\ud800")
        eventually(lambda: written(server))
        (event,) = written(server)
    assert len(event["metadata"]["name"]) <= 253
    assert re.fullmatch(r"[a-z0-9.]+[a-z0-9]\.[0-9a-f]{16}", event["metadata"]["name"])
    assert len(event["reason"]) == 128
    assert len(event["message"]) <= 1024


def test_a_stop_is_obeyed_while_the_server_is_silent() -> None:
    def silent(request: Request, wire: Wire) -> None:
        wire.silence()

    with recording(silent) as (server, recorder, _):
        recorder.record("Reason", "message")
        eventually(lambda: server.requests)
        began = time.monotonic()
    assert time.monotonic() - began < 4  # which is what a daemon has
