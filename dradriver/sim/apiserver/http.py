"""A small HTTP/1.1 server: one thread for each connection, kept alive, and every answer in one write.

The standard library's has no way to drop a connection, to leave one without an answer, or to cut a body off, and takes
several times as long for a request.
"""

import contextlib
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import responses
from typing import Final
from urllib.parse import parse_qsl, unquote

from dradriver.backoff import delays

MAX_BODY: Final = 3 * 1024 * 1024
"""Bytes of a request's body, as the API server limits it."""

_MAX_HEAD: Final = 64 * 1024
_IDLE_SECONDS: Final = 300.0
_SEND_SECONDS: Final = 30.0
_HANDSHAKE_SECONDS: Final = 10.0
_BROKEN_HANDSHAKE: Final = b"\x15\x03\x03\x00\x02\x02\x28"  # alert: handshake_failure


@dataclass(slots=True)
class Request:
    """One request. Header names are in lower case; `query` has the last value of each parameter."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(slots=True)
class Response:
    """An answer as a whole."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()


@dataclass(slots=True)
class Stream:
    """An answer in pieces: `run` sends them, and the connection is closed when it returns False.

    `close` is called at the end in any case, also where `run` was not.
    """

    run: "Callable[[Exchange], bool]"
    close: Callable[[], None]


@dataclass(slots=True)
class Cut:
    """No whole answer: `part` of one is sent, and the connection is closed."""

    part: bytes = b""


@dataclass(slots=True)
class Silence:
    """No answer at all, while the connection stays open until the client or the server goes."""


Reply = Response | Stream | Cut | Silence
Handler = Callable[[Request], Reply]


class GoneError(OSError):
    """The client closed the connection, or does not read what is sent."""


@dataclass(slots=True)
class Exchange:
    """What a stream writes to."""

    _socket: socket.socket
    _ended: threading.Event
    _poll: select.poll = field(default_factory=select.poll)
    _watched: set[int] = field(default_factory=set)

    def send(self, data: bytes) -> None:
        """Send one chunk. Raises GoneError."""
        self.send_raw(b"%x\r\n%b\r\n" % (len(data), data))

    def send_raw(self, data: bytes) -> None:
        """Send bytes outside any chunk. Raises GoneError."""
        try:
            self._socket.settimeout(_SEND_SECONDS)
            self._socket.sendall(data)
        except OSError as error:
            raise GoneError(str(error)) from error

    def wait(self, descriptor: int, seconds: float) -> bool:
        """Wait for the descriptor, up to that long; return whether the stream may go on.

        It ends when the client closes the connection or the server stops.
        """
        own = self._socket.fileno()
        if own < 0 or self._ended.is_set():
            return False
        for number in {own, descriptor} - self._watched:
            self._poll.register(number, select.POLLIN)
            self._watched.add(number)
        ready = {number for number, _ in self._poll.poll(max(0.0, seconds) * 1000)}
        return not self._ended.is_set() and not (own in ready and self._closed())

    def _closed(self) -> bool:
        """Whether the client has closed; what it sends meanwhile is thrown away."""
        try:
            self._socket.settimeout(0)
            return self._socket.recv(4096) == b""
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True


class HttpServer:
    """Listens on the loopback address and answers with what `handler` returns."""

    def __init__(self, handler: Handler, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.broken_handshakes = 0
        """How many of the next TLS handshakes to break."""
        self._handler = handler
        self._tls = tls
        self._guard = threading.RLock()
        self._ended = threading.Event()
        self._bound: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._threads: set[threading.Thread] = set()
        self._sockets: set[socket.socket] = set()

    @property
    def listening(self) -> bool:
        """Whether connections are accepted."""
        return self._listener is not None

    def listen(self) -> None:
        """Accept connections, again on the same port after `refuse`. Raises OSError."""
        with self._guard:
            if self._listener is not None or self._ended.is_set():
                return
            if self._bound is None:
                self._bound = _bound(self.port)
                self.port = self._bound.getsockname()[1]
            listener = self._bound.dup()
            listener.listen(128)
            self._listener = listener
            self._start(self._accept, listener, "apiserver-accept")

    def refuse(self) -> None:
        """Refuse connections from now on; those that there are stay."""
        with self._guard:
            listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
            listener.close()

    def drop_connections(self) -> None:
        """Cut all connections that there are."""
        with self._guard:
            sockets = list(self._sockets)
        for connection in sockets:
            _shut(connection)

    def stop(self) -> None:
        """Close everything and wait for the threads."""
        self._ended.set()
        self.refuse()
        self.drop_connections()
        with self._guard:
            threads = list(self._threads)
            if self._bound is not None:
                self._bound.close()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_SEND_SECONDS)

    def _start(self, target: Callable[[socket.socket], None], connection: socket.socket, name: str) -> None:
        def run() -> None:
            try:
                target(connection)
            finally:
                with self._guard:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._guard:
            self._threads.add(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        pauses = delays(0.01, 0.5)
        while not self._ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                # What a connection or the process lacks (ECONNABORTED, EMFILE) passes; a closed listener stays closed.
                if self._listener is not listener or self._ended.wait(next(pauses)):
                    return
                continue
            pauses = delays(0.01, 0.5)
            with self._guard:
                if self._ended.is_set():
                    connection.close()
                    return
                self._sockets.add(connection)
            self._start(self._serve, connection, "apiserver-connection")

    def _serve(self, connection: socket.socket) -> None:
        plain = connection
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._secured(connection, self._tls)
            _Connection(connection, self._handler, self._ended).serve()
        except OSError:
            pass  # the client's affair: it went away, or spoke no TLS
        finally:
            with self._guard:
                self._sockets.discard(plain)
                self._sockets.discard(connection)
            connection.close()
            plain.close()

    def _secured(self, connection: socket.socket, tls: ssl.SSLContext) -> socket.socket:
        connection.settimeout(_HANDSHAKE_SECONDS)
        with self._guard:
            broken = self.broken_handshakes > 0
            self.broken_handshakes -= broken
        if broken:
            connection.recv(1)
            connection.sendall(_BROKEN_HANDSHAKE)
            raise OSError("the handshake is broken on command")
        secured = tls.wrap_socket(connection, server_side=True)
        with self._guard:
            self._sockets.discard(connection)
            self._sockets.add(secured)
            ended = self._ended.is_set()
        if ended:
            _shut(secured)
        return secured


def _bound(port: int) -> socket.socket:
    """Return a socket that has a port of the loopback address, any for 0. Raises OSError.

    It keeps the port while it does not listen: nobody else gets it while connections are refused. The kernel lets go
    of a port that was not asked for by its number (`tcp_set_state` in net/ipv4/tcp.c), so that one is asked for twice.
    """
    while True:
        number = port or _free_port()
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("127.0.0.1", number))
        except OSError:
            bound.close()
            if port:
                raise
        else:
            return bound


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not through TLS: its goodbye would wait for a client that does not read.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _BadRequestError(Exception):
    """Something that is no request: the answer, after which the connection is closed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Connection:
    """The requests of one connection, one after another."""

    def __init__(self, connection: socket.socket, handler: Handler, ended: threading.Event) -> None:
        self._socket = connection
        self._handler = handler
        self._ended = ended
        self._buffer = b""

    def serve(self) -> None:
        """Answer until either side closes. Raises OSError."""
        while not self._ended.is_set():
            try:
                request, last = self._request()
            except _BadRequestError as error:
                text = str(error).encode()
                self._send(_whole(Response(error.status, text, "text/plain; charset=utf-8"), last=True))
                return
            if request is None or not self._answer(request, last) or last:
                return

    def _answer(self, request: Request, last: bool) -> bool:
        """Answer one request; return whether the connection can be used for another."""
        reply = self._handler(request)
        match reply:
            case Response():
                self._send(_whole(reply, last, request.method == "HEAD"))
                return True
            case Stream():
                exchange = Exchange(self._socket, self._ended)
                try:
                    exchange.send_raw(_STREAM_HEAD)
                    going = reply.run(exchange)
                    if going:
                        exchange.send_raw(b"0\r\n\r\n")
                except GoneError:
                    return False
                finally:
                    reply.close()
                return going
            case Cut():
                self._send(reply.part)
                return False
            case Silence():
                self._be_silent()
                return False

    def _be_silent(self) -> None:
        exchange = Exchange(self._socket, self._ended)
        never = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            while exchange.wait(never, _IDLE_SECONDS):
                pass
        finally:
            os.close(never)

    def _send(self, data: bytes) -> None:
        self._socket.settimeout(_SEND_SECONDS)
        self._socket.sendall(data)

    def _request(self) -> tuple[Request | None, bool]:
        """Return the next request, None at the end, and whether it is the last of this connection."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _MAX_HEAD:
                raise _BadRequestError(431, "the header is too large")
            if not self._receive():
                return None, True
        head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
        lines = head.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise _BadRequestError(400, "400 Bad Request: malformed request line")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise _BadRequestError(400, "400 Bad Request: malformed header")
            headers[name.lower()] = value.strip()
        method, target, version = parts
        path, _, query = target.partition("?")
        request = Request(
            method,
            unquote(path) if "%" in path else path,
            dict(parse_qsl(query, keep_blank_values=True)) if query else {},
            headers,
        )
        request.body = self._body(headers)
        connection = headers.get("connection", "").lower()
        return request, connection == "close" or (version == "HTTP/1.0" and connection != "keep-alive")

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("expect", "").lower() == "100-continue":
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return self._chunks()
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > 15:
            raise _BadRequestError(400, "400 Bad Request: bad Content-Length")
        if int(length) > MAX_BODY:
            raise _BadRequestError(413, f"Request entity too large: limit is {MAX_BODY}")
        return self._exactly(int(length))

    def _chunks(self) -> bytes:
        body = b""
        while True:
            size = self._line().split(b";")[0].strip()
            try:
                length = int(size, 16)
            except ValueError:
                raise _BadRequestError(400, "400 Bad Request: bad chunk") from None
            if length == 0:
                while self._line():
                    pass
                return body
            if length < 0 or len(body) + length > MAX_BODY:
                raise _BadRequestError(413, f"Request entity too large: limit is {MAX_BODY}")
            body += self._exactly(length)
            self._exactly(2)

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _MAX_HEAD or not self._receive():
                raise _BadRequestError(400, "400 Bad Request: bad chunk")
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def _exactly(self, length: int) -> bytes:
        if len(self._buffer) < length:
            pieces, missing = [self._buffer], length - len(self._buffer)
            while missing > 0:
                piece = self._socket.recv(min(missing, 1 << 16))
                if not piece:
                    raise ConnectionResetError("the body is cut off")
                pieces.append(piece)
                missing -= len(piece)
            self._buffer = b"".join(pieces)
        data, self._buffer = self._buffer[:length], self._buffer[length:]
        return data

    def _receive(self) -> bool:
        self._socket.settimeout(_IDLE_SECONDS)
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return False
        self._buffer += data
        return bool(data)


def _whole(response: Response, last: bool = False, head_only: bool = False) -> bytes:
    head = _head(response.status, response.content_type, response.headers)
    closing = "Connection: close\r\n" if last else ""
    head += f"Content-Length: {len(response.body)}\r\n{closing}\r\n"
    return head.encode("latin-1", "replace") + (b"" if head_only else response.body)


def cut_off(response: Response) -> Cut:
    """Return an answer that breaks off in the middle of its body."""
    whole = _whole(response)
    return Cut(whole[: len(whole) - len(response.body) // 2 - 1])


def _head(status: int, content_type: str, headers: Sequence[tuple[str, str]]) -> str:
    head = f"HTTP/1.1 {status} {responses.get(status, 'Unknown')}\r\nContent-Type: {content_type}\r\n"
    for name, value in headers:
        head += f"{name}: {value}\r\n"
    return head


_STREAM_HEAD: Final = f"{_head(200, 'application/json', ())}Transfer-Encoding: chunked\r\n\r\n".encode()
