"""A small HTTP server that answers as an API server may, well or badly, and certificates for it.

What it answers is a function of the test: it gets the request and the `Wire` to answer on.
"""

import json
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import pytest

from dradriver.clock import SYSTEM, Clock
from dradriver.kube import Client, Connection

NODE = "/api/v1/nodes/n1"
TOKEN = "secret-token-1"


@dataclass(frozen=True)
class Request:
    """What a client asked."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    at: float
    peer: Any

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def watch(self) -> bool:
        return self.query.get("watch") == "true"


class Wire:
    """The way back to the client."""

    def __init__(self, handler: "_Handler") -> None:
        self._handler = handler
        self._began = False

    @property
    def stopping(self) -> threading.Event:
        return self._handler.server.stopping

    @property
    def certificate(self) -> Any:
        """What the client has shown of itself."""
        sock = self._handler.connection
        return sock.getpeercert() if isinstance(sock, ssl.SSLSocket) else None

    def send(self, body: Any, code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answer in full."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._handler.send_response(code)
        self._handler.send_header("Content-Type", "application/json")
        self._handler.send_header("Content-Length", str(len(data)))
        for key, value in (headers or {}).items():
            self._handler.send_header(key, value)
        self._handler.end_headers()
        self.raw(data)

    def refuse(
        self, code: int, reason: str, message: str = "no", headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer with a Status."""
        self.send(status(code, reason, message), code, headers)

    def line(self, kind: str, changed: Any) -> None:
        """Send an event of a watch."""
        self.chunk(json.dumps({"type": kind, "object": changed}).encode() + b"\n")

    def chunk(self, data: bytes) -> None:
        """Send a chunk of a stream, after the headers if need be."""
        self.begin()
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def begin(self) -> None:
        """Begin a stream."""
        if not self._began:
            self._began = True
            self._handler.send_response(200)
            self._handler.send_header("Transfer-Encoding", "chunked")
            self._handler.end_headers()
            self.raw(b"")

    def end(self) -> None:
        """End a stream as the protocol has it."""
        self.begin()
        self.raw(b"0\r\n\r\n")

    def raw(self, data: bytes) -> None:
        """Send bytes."""
        self._handler.wfile.write(data)
        self._handler.wfile.flush()

    def cut(self) -> None:
        """Close the connection, whatever was to come."""
        self._handler.cut()

    def silence(self, seconds: float = 60.0) -> bool:
        """Say nothing until the client goes (True), or the server ends, or the time is over; then close."""
        end = time.monotonic() + seconds
        while not self.stopping.is_set() and time.monotonic() < end:
            if select.select([self._handler.connection], [], [], 0.02)[0]:
                self.cut()
                return True
        self.cut()
        return False


Answer = Callable[[Request, Wire], None]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"
    wbufsize = -1

    def setup(self) -> None:
        with self.server.guard:
            self.server.open.add(self.request)
            self.server.accepted += 1
        if self.server.context is not None and not self.server.mute:
            plain = self.request
            self.request.settimeout(10)
            self.request = self.server.context.wrap_socket(self.request, server_side=True)
            with self.server.guard:
                self.server.open.discard(plain)
                self.server.open.add(self.request)
        super().setup()

    def handle(self) -> None:
        if self.server.mute:
            while self.request.recv(1 << 16):
                pass
        else:
            super().handle()

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            with self.server.guard:
                self.server.open.discard(self.request)
            self.request.close()

    def cut(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        socket.socket.shutdown(self.connection, socket.SHUT_RDWR)

    def answer(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        request = Request(
            self.command,
            parts.path,
            dict(parse_qsl(parts.query, keep_blank_values=True)),
            dict(self.headers.items()),
            body,
            time.monotonic(),
            self.client_address,
        )
        with self.server.guard:
            self.server.requests.append(request)
        self.server.answer(request, Wire(self))

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer  # noqa: N815 - names of the base class

    def do_CONNECT(self) -> None:
        self.server.connected.append((self.path, self.headers.get("Proxy-Authorization")))
        if self.server.proxy_refuses:
            self.send_response(407)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        host, _, port = self.path.rpartition(":")
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.wfile.flush()
        self.close_connection = True
        with socket.create_connection((host, int(port)), 5) as onward:
            _pump(self.connection, onward, self.server.stopping)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - name of the base class
        """Say nothing."""


def _pump(one: socket.socket, other: socket.socket, stopping: threading.Event) -> None:
    pairs = {one: other, other: one}
    while not stopping.is_set():
        for ready in select.select(list(pairs), [], [], 0.05)[0]:
            data = ready.recv(1 << 16)
            if not data:
                return
            pairs[ready].sendall(data)


class Server(ThreadingTCPServer):
    """The server, from `with` to its end. `answer` may be replaced at any time.

    context   for TLS, replaced to rotate certificates
    mute      whether connections are accepted, and nothing else
    accepted  number of connections so far
    """

    allow_reuse_address = True
    daemon_threads = False
    request_queue_size = 64

    def __init__(self, answer: Answer | None = None, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: Answer = answer or (lambda request, wire: wire.send({}))
        self.context = context
        self.mute = False
        self.proxy_refuses = False
        self.requests: list[Request] = []
        self.connected: list[tuple[str, str | None]] = []
        self.accepted = 0
        self.open: set[socket.socket] = set()
        self.guard = threading.Lock()
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,))

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"{'http' if self.context is None else 'https'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self.shutdown()
        self.hang_up()
        self.server_close()
        self._thread.join()

    def hang_up(self) -> None:
        """Close all connections that are open."""
        with self.guard:
            for sock in self.open:
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients go when they like."""
        with self.guard:
            self.open.discard(request)

    def watches(self) -> list[Request]:
        return [request for request in list(self.requests) if request.watch]

    def lists(self) -> list[Request]:
        return [request for request in list(self.requests) if request.method == "GET" and not request.watch]


def status(code: int, reason: str, message: str = "no", **details: Any) -> dict[str, Any]:
    """Return a Status object."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }


def thing(name: str, version: int, **fields: Any) -> dict[str, Any]:
    """Return an object."""
    return {"metadata": {"name": name, "resourceVersion": str(version)}, **fields}


def page(*items: Any, version: int = 10, rest: str = "") -> dict[str, Any]:
    """Return a list object."""
    metadata = {"resourceVersion": str(version)} | ({"continue": rest} if rest else {})
    return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": list(items)}


@dataclass
class Authority:
    """A certificate authority in a directory, by the `openssl` command; the test is skipped where that is missing."""

    directory: Path
    name: str = "ca"
    pem: Path = field(init=False)

    def __post_init__(self) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("the openssl command is not there: no certificates can be made")
        self.pem = self.directory / f"{self.name}.pem"
        self._openssl(
            "req", "-x509", *_KEY, "-keyout", self._key, "-out", self.pem, "-days", "2",
            "-subj", f"/CN={self.name}", "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip

    @property
    def _key(self) -> Path:
        return self.directory / f"{self.name}.key"

    def _openssl(self, *arguments: Any) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

    def issue(self, subject: str, names: str = "IP:127.0.0.1,DNS:localhost") -> tuple[Path, Path]:
        """Return files of a certificate and its key."""
        base = self.directory / f"{self.name}-{subject}"
        certificate, key, request, options = (
            base.with_suffix(end) for end in (".pem", ".key", ".csr", ".ext")
        )
        options.write_text(f"subjectAltName={names}\n")
        self._openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/O=system:nodes/CN={subject}")
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.pem, "-CAkey", self._key, "-CAcreateserial",
            "-out", certificate, "-days", "2", "-extfile", options,
        )  # fmt: skip
        return certificate, key

    def context(
        self, names: str = "IP:127.0.0.1,DNS:localhost", clients: Path | None = None
    ) -> ssl.SSLContext:
        """Return what a server needs; with `clients`, one that wants certificates of that authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue("server", names))
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def pod(directory: Path, token: str = "secret-token-1", ca: str = "") -> Path:
    """Write the files of a pod's service account."""
    directory.mkdir(exist_ok=True)
    (directory / "token").write_text(token)
    (directory / "ca.crt").write_text(ca)
    (directory / "namespace").write_text("dradriver")
    return directory


@contextmanager
def serving(answer: Answer | None = None, **options: Any) -> Iterator[tuple[Server, Client]]:
    with Server(answer) as server:
        client = Client(Connection(server.url, token=TOKEN), **options)
        try:
            yield server, client
        finally:
            client.close()


def soon(client: Client, seconds: float = 0.5) -> float:
    return client.clock.now() + seconds


def allow_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests take what the machine needs, though the clock runs much faster: none of them is late."""
    for limit in ("client.DEFAULT_SECONDS", "listwatch.LIST_SECONDS", "transport.CONNECT_SECONDS"):
        monkeypatch.setattr(f"dradriver.kube.{limit}", 1e6)


def silent(request: Request, wire: Wire) -> None:
    wire.silence()


def cut_at_once(request: Request, wire: Wire) -> None:
    wire.cut()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def client_of(connection: Connection, clock: Clock = SYSTEM) -> Iterator[Client]:
    client = Client(connection, clock=clock, qps=1e6, burst=10_000)
    try:
        yield client
    finally:
        client.close()


def whoami(request: Request, wire: Wire) -> None:
    certificate = wire.certificate
    subject = (
        [value for one in certificate["subject"] for key, value in one if key == "commonName"]
        if certificate
        else []
    )
    wire.send(
        {"token": request.headers.get("Authorization", ""), "certificate": subject, "path": request.path}
    )


def environment(server: Server) -> dict[str, str]:
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}


def in_turn(*answers: Answer) -> Answer:
    """Give each request its own answer, the last one to all that follow."""
    left = list(answers)

    def answer(request: Request, wire: Wire) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(request, wire)

    return answer


def refusing(code: int, reason: str) -> Answer:
    return lambda request, wire: wire.refuse(code, reason)
