"""Events of the kernel. An event is asked for by a write to a device's `uevent` file, which needs root."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dradriver.host import Uevent, UeventMonitor, UeventsUnavailableError

NULL = Path("/sys/devices/virtual/mem/null/uevent")
LOOPBACK = Path("/sys/devices/virtual/net/lo/uevent")

needs_events = pytest.mark.skipif(
    not os.access(NULL, os.W_OK), reason=f"{NULL}: not writable: no events to see"
)

PATIENCE = 20.0


@contextmanager
def running(monitor: UeventMonitor, opened: threading.Event) -> Iterator[threading.Thread]:
    stop = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            monitor.run(stop)
        except UeventsUnavailableError as error:
            failures.append(error)
            opened.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert opened.wait(PATIENCE)
        if failures:
            pytest.skip(f"no events here: {failures[0]}")
        yield thread
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def ask_for_events(file: Path, count: int = 1) -> None:
    descriptor = os.open(file, os.O_WRONLY)
    try:
        for _ in range(count):
            os.write(descriptor, b"change")
    finally:
        os.close(descriptor)


@needs_events
def test_events_of_the_chosen_subsystems_arrive() -> None:
    events: list[Uevent] = []
    seen, opened = threading.Event(), threading.Event()

    def take(event: Uevent) -> None:
        events.append(event)
        seen.set()

    with running(UeventMonitor(frozenset({"mem"}), take, opened.set), opened):
        ask_for_events(LOOPBACK)
        ask_for_events(NULL)
        assert seen.wait(PATIENCE)
    assert Uevent("mem", "change", "/devices/virtual/mem/null") in events
    assert {event.subsystem for event in events} == {"mem"}


@needs_events
def test_lost_events_ask_for_a_new_look() -> None:
    flooded, opened, lost = threading.Event(), threading.Event(), threading.Event()

    def resync() -> None:
        (lost if opened.is_set() else opened).set()

    def take(_event: Uevent) -> None:
        flooded.wait(PATIENCE)

    with running(UeventMonitor(frozenset({"mem"}), take, resync), opened):
        ask_for_events(NULL, 40_000)
        flooded.set()
        assert lost.wait(PATIENCE)


def test_a_monitor_that_cannot_be_opened_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pyudev = pytest.importorskip("pyudev")

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError("Could not create udev monitor")

    monkeypatch.setattr(pyudev.Monitor, "from_netlink", refuse)
    monitor = UeventMonitor(frozenset({"pci"}), print, print)
    with pytest.raises(
        UeventsUnavailableError, match="kernel events: cannot open the monitor: Could not create"
    ):
        monitor.run(threading.Event())
