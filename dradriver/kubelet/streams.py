"""The health streams to the kubelet (DRAResourceHealth), v1alpha1 and v1: one implementation, two names."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from dradriver.kubelet.health import HealthBoard, HealthSnapshot
from dradriver.kubelet.text import sentence
from dradriver.model import Health
from dradriver_protos import health_v1_pb2, health_v1_pb2_grpc, health_v1alpha1_pb2, health_v1alpha1_pb2_grpc

MAX_STREAMS = 8
"""Streams of one driver at a time: a kubelet opens one, and each pins a worker thread while it lives."""

CHECK_TIMEOUT_SECONDS = 30
"""After this time without a word the kubelet takes a device's health for unknown."""

REPEAT_SECONDS = 10.0
"""The list is repeated well inside that time."""

_HEALTH = {Health.UNKNOWN: 0, Health.HEALTHY: 1, Health.UNHEALTHY: 2}


class HealthStreams:
    """The open streams of one server. The slots are shared with the server that a rebound one replaces."""

    def __init__(self, driver: str, board: HealthBoard, slots: threading.Semaphore) -> None:
        self._driver = driver
        self._board = board
        self._slots = slots
        self._closed = threading.Event()

    def add_to(self, server: grpc.Server) -> None:
        """Register both versions of the service."""
        health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(
            _Servicer(self, health_v1alpha1_pb2), server
        )
        health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(_Servicer(self, health_v1_pb2), server)

    def close(self) -> None:
        """End every stream, and those that still come."""
        self._closed.set()
        self._board.wake()

    def lists(self, context: grpc.ServicerContext) -> Iterator[HealthSnapshot]:
        """Yield the whole list at once, at every change and every `REPEAT_SECONDS`, until either side ends."""
        if not self._slots.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"driver {self._driver} serves at most {MAX_STREAMS} health streams at a time",
            )
        try:
            yield from self._lists(context)
        finally:
            self._slots.release()

    def _lists(self, context: grpc.ServicerContext) -> Iterator[HealthSnapshot]:
        gone = threading.Event()

        def hang_up() -> None:
            gone.set()
            self._board.wake()

        def ended() -> bool:
            return gone.is_set() or self._closed.is_set()

        if not context.add_callback(hang_up):
            return
        while not ended():
            snapshot = self._board.snapshot(self._driver)
            yield snapshot
            self._board.wait(self._driver, snapshot.version, REPEAT_SECONDS, ended)


class _Servicer(
    health_v1_pb2_grpc.DRAResourceHealthServicer, health_v1alpha1_pb2_grpc.DRAResourceHealthServicer
):
    """One version of the service; the messages of the two differ in their package alone."""

    def __init__(self, streams: HealthStreams, messages: Any) -> None:
        self._streams = streams
        self._messages = messages

    def NodeWatchResources(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        del request
        for snapshot in self._streams.lists(context):
            yield _message(self._messages, snapshot)


def _message(messages: Any, snapshot: HealthSnapshot) -> Any:
    return messages.NodeWatchResourcesResponse(
        devices=[
            messages.DeviceHealth(
                device=messages.DeviceIdentifier(pool_name=pool, device_name=device),
                health=_HEALTH[state.health],
                last_updated_time=int(state.since),
                health_check_timeout_seconds=CHECK_TIMEOUT_SECONDS,
                message=sentence(state.message),
            )
            for (pool, device), state in snapshot.states.items()
        ]
    )
