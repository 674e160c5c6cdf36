"""A plain HTTP client for the stand-in API server, with none of dradriver's own client in it."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any, NamedTuple

import urllib3

from dradriver.sim.apiserver import ApiServer
from waiting import PATIENCE

RESOURCE = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCE}/resourceslices"
CLASSES = f"{RESOURCE}/deviceclasses"
CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"
NODES = "/api/v1/nodes"
SECONDS = PATIENCE

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


def compact(value: Any) -> bytes:
    """Return a value as JSON without white space, which is what byte limits count."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class Answer(NamedTuple):
    """A status, the JSON body, and the headers."""

    status: int
    body: Any
    headers: Mapping[str, str]


class Api:
    """Requests to one server. A context manager."""

    def __init__(self, server: ApiServer, token: str = "") -> None:
        self.url = server.url
        options: dict[str, Any] = {"retries": False, "timeout": SECONDS, "maxsize": 8}
        if server.certificate:
            options["ca_certs"] = str(server.certificate)
        self.pool = urllib3.PoolManager(**options)
        self.headers = {"User-Agent": "test/1.0"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def __enter__(self) -> "Api":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.clear()

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **headers: str
    ) -> Answer:
        """Send a request; `body` is JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) or body is None else compact(body)
        sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if data is not None:
            sent["Content-Type"] = content_type
        answer = self.pool.request(method, self.url + path, body=data, headers=sent)
        text = answer.data
        is_json = "json" in answer.headers.get("content-type", "")
        return Answer(answer.status, json.loads(text) if is_json else text.decode(), answer.headers)

    def get(self, path: str, **headers: str) -> Answer:
        """GET."""
        return self.request("GET", path, **headers)

    def post(self, path: str, body: Any) -> Answer:
        """POST."""
        return self.request("POST", path, body)

    def put(self, path: str, body: Any) -> Answer:
        """PUT."""
        return self.request("PUT", path, body)

    def patch(self, path: str, body: Any, content_type: str = MERGE) -> Answer:
        """PATCH."""
        return self.request("PATCH", path, body, content_type)

    def apply(self, path: str, body: Any, manager: str = "tester", **query: str) -> Answer:
        """Server-side apply."""
        more = "".join(f"&{name}={value}" for name, value in query.items())
        return self.request("PATCH", f"{path}?fieldManager={manager}{more}", body, APPLY)

    def delete(self, path: str, body: Any = None) -> Answer:
        """DELETE."""
        return self.request("DELETE", path, body)

    @contextmanager
    def watch(self, path: str, **headers: str) -> Iterator["Events"]:
        """Watch a collection; `path` has the query but for `watch`."""
        separator = "&" if "?" in path else "?"
        pool = urllib3.PoolManager(retries=False, timeout=SECONDS, ca_certs=self._certificate())
        answer = pool.request(
            "GET",
            f"{self.url}{path}{separator}watch=true",
            headers={**self.headers, **headers},
            preload_content=False,
        )
        events = Events(answer)
        try:
            yield events
        finally:
            events.close()
            pool.clear()

    def _certificate(self) -> Any:
        return self.pool.connection_pool_kw.get("ca_certs")


class Events:
    """The events of one watch as they come, read by a thread."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self.status = answer.status
        self.end: BaseException | None = None
        self.rest = b""
        """What came after the last whole line."""
        self.ended = threading.Event()
        self._answer = answer
        self._queue: Queue[dict[str, Any]] = Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for chunk in self._answer.stream(65536):
                lines = (self.rest + chunk).split(b"\n")
                self.rest = lines.pop()
                for line in lines:
                    self._queue.put(json.loads(line))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            self.end = error
        finally:
            self.ended.set()

    def next(self, seconds: float = SECONDS) -> tuple[str, dict[str, Any]]:
        """Return the type and object of the next event. Raises queue.Empty."""
        event = self._queue.get(timeout=seconds)
        return event["type"], event["object"]

    def names(self, count: int) -> list[tuple[str, str]]:
        """Return type and object's name of the next events."""
        found = [self.next() for _ in range(count)]
        return [(kind, obj["metadata"]["name"]) for kind, obj in found]

    def quiet(self, seconds: float = 0.2) -> bool:
        """Whether nothing comes for that long."""
        try:
            self._queue.put(self._queue.get(timeout=seconds))
        except Empty:
            return True
        return False

    def close(self) -> None:
        """End the watch from this side."""
        sock = getattr(self._answer.connection, "sock", None)
        if sock is not None and not self.ended.is_set():
            sock.shutdown(2)
        self._thread.join(SECONDS)
        self._answer.close()


def slice_body(
    name: str = "s1", node: str = "node-a", driver: str = "gpu.dradriver.io", **metadata: Any
) -> Any:
    """Return a small ResourceSlice."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name, **metadata},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": f"{node}/gpu", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}],
        },
    }


def claim_body(name: str = "c1", **metadata: Any) -> Any:
    """Return a small ResourceClaim."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, **metadata},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
    }


def allocation(*devices: str) -> Any:
    """Return the allocation of these devices, as in a claim's status."""
    results = [
        {"request": "gpu", "driver": "gpu.dradriver.io", "pool": "node-a/gpu", "device": device}
        for device in devices
    ]
    return {"devices": {"results": results}}


def node_body(name: str = "node-a", **metadata: Any) -> Any:
    """Return a Node."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata}}
