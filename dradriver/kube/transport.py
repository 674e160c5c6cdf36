"""HTTP to the API server: one pool of connections, and answers that end within limits."""

import logging
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, NameResolutionError, NewConnectionError

from dradriver.kube.connection import TLS, Access
from dradriver.kube.errors import KubeError, StoppedError, UnreachableError, one_line
from dradriver.kube.limits import Limits
from dradriver.kube.sockets import PatientTLSSocket, dial

CONNECT_SECONDS = 10.0
"""For a connection: name, addresses, proxy, TLS handshake."""

IDLE_SECONDS = 60.0
"""A connection that was idle for longer is not used again: the API server closes it after 90 s, perhaps just now."""

MAX_CONNECTIONS = 32
"""That are kept: claims read in parallel, watches, the publisher."""

MAX_ANSWER_BYTES = 64 << 20
"""Of one answer. A page of 500 objects is some MiB."""

MAX_LINE_BYTES = 16 << 20
"""Of one event of a watch. The API server stores objects of at most 1.5 MiB, as protobuf."""

_PIECE_BYTES = 1 << 16

_FAILURES = (HTTPError, HTTPException, OSError, ValueError)

_log = logging.getLogger(__name__)


class _Connection(HTTPConnection):
    """A connection that keeps the limits, and knows whether it has served before."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._answers = 0
        self._used_at = 0.0

    def _new_conn(self) -> socket.socket:
        try:
            return dial(self._dns_host, self.port)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error

    def connect(self) -> None:
        limits = Limits.current()
        if limits is None:
            raise RuntimeError("a connection is made within limits only")
        self._answers = 0
        with limits.within(CONNECT_SECONDS, "connection"):
            super().connect()

    @property
    def is_connected(self) -> bool:
        return time.monotonic() - self._used_at < IDLE_SECONDS and super().is_connected

    def request(self, *args: Any, **options: Any) -> None:
        limits = Limits.current()
        if limits is not None:
            limits.reused = self.sock is not None and self._answers > 0
        super().request(*args, **options)

    def getresponse(self) -> Any:
        response = super().getresponse()
        self._answers += 1
        self._used_at = time.monotonic()
        return response


class _TLSConnection(_Connection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection

    def _validate_conn(self, conn: Any) -> None:
        # As in the base class, but without a warning for each unverified connection: that is said once.
        if conn.is_closed:
            conn.connect()


class Transport:
    """A pool of connections to one server, in one way."""

    def __init__(self, access: Access) -> None:
        """Raise KubeError where certificates or the proxy are not usable."""
        self.server = access.server
        self.tls = access.tls
        self.proxy = access.proxy
        self.proxy_auth = access.proxy_auth
        options: dict[str, Any] = {"num_pools": 1, "maxsize": MAX_CONNECTIONS, "retries": False}
        if access.server.startswith("https:"):
            options["ssl_context"] = _context(access.tls)
            if access.tls.server_name:
                options["server_hostname"] = access.tls.server_name
            if not access.tls.verify:
                _log.warning("the certificate of %s is not verified, as configured", access.server)
        self._manager = _manager(access, options)
        self._manager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}

    def serves(self, access: Access) -> bool:
        """Return whether this is the way to go for `access`; credentials in headers make no difference."""
        return (
            self.server == access.server
            and self.tls == access.tls
            and self.proxy == access.proxy
            and self.proxy_auth == access.proxy_auth
        )

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: Limits
    ) -> urllib3.BaseHTTPResponse:
        """Send a request, and return the answer with its body still to be read, by `read` or `lines`.

        One that meets a connection that the server had closed meanwhile is sent again at once, if it cannot have
        been executed or executing it twice does no harm. Raises UnreachableError.
        """
        limits.again()
        try:
            return self._once(method, target, headers, body, limits)
        except UnreachableError:
            if not limits.reused or limits.stopped:
                raise
            # The other idle connections are as old: none of them is used from here on.
            self.clear()
            if limits.received or limits.left <= 0 or not (method == "GET" or limits.unsent):
                raise
        limits.again()
        return self._once(method, target, headers, body, limits)

    def _once(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: Limits
    ) -> urllib3.BaseHTTPResponse:
        try:
            with limits:
                return self._manager.urlopen(
                    method,
                    self.server + target,
                    headers=headers,
                    body=body,
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
        except _FAILURES as error:
            raise self._failure(error, limits) from None

    def read(self, response: urllib3.BaseHTTPResponse, limits: Limits) -> bytes:
        """Return the whole body. Raises UnreachableError."""
        pieces, size = [], 0
        length = response.headers.get("Content-Length", "")
        try:
            if length.isdigit() and int(length[:20]) > MAX_ANSWER_BYTES:
                raise UnreachableError(
                    f"the answer has {length[:20]} bytes: at most {MAX_ANSWER_BYTES} are read"
                )
            for piece in self._pieces(response, limits):
                size += len(piece)
                if size > MAX_ANSWER_BYTES:
                    raise UnreachableError(
                        f"the answer is too large: at most {MAX_ANSWER_BYTES} bytes are read"
                    )
                pieces.append(piece)
        finally:
            discard(response)
        return b"".join(pieces)

    def lines(self, response: urllib3.BaseHTTPResponse, limits: Limits) -> Iterator[bytes]:
        """Yield the lines of the body as they come. Raises UnreachableError, also where the last one has no end."""
        rest: list[bytes] = []
        size = 0
        for piece in self._pieces(response, limits):
            *whole, last = piece.split(b"\n")
            for line in whole:
                yield b"".join([*rest, line])
                rest, size = [], 0
            rest.append(last)
            size += len(last)
            if size > MAX_LINE_BYTES:
                raise UnreachableError(
                    f"a line of the answer is too long: at most {MAX_LINE_BYTES} bytes are read"
                )
        if size:
            raise UnreachableError("the answer ends within a line")

    def _pieces(self, response: urllib3.BaseHTTPResponse, limits: Limits) -> Iterator[bytes]:
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise UnreachableError(f"the answer is encoded as {one_line(encoding, 32)}: none was asked for")
        while True:
            try:
                with limits:
                    piece = response.read1(_PIECE_BYTES)
            except _FAILURES as error:
                raise self._failure(error, limits) from None
            if not piece:
                return
            yield piece

    def clear(self) -> None:
        """Let go of all connections; those in use end after their answer."""
        self._manager.clear()

    def _failure(self, error: Exception, limits: Limits) -> UnreachableError:
        if limits.stopped:
            return StoppedError("stopped")
        return UnreachableError(f"{self.server}: {one_line(_told(error), 200)}")


def discard(response: urllib3.BaseHTTPResponse) -> None:
    """Be done with an answer: a connection with something left to read is closed, another one is kept."""
    if not response.closed:
        response.close()
    response.release_conn()


def _manager(access: Access, options: dict[str, Any]) -> urllib3.PoolManager:
    if not access.proxy:
        return urllib3.PoolManager(**options)
    headers = urllib3.make_headers(proxy_basic_auth=access.proxy_auth) if access.proxy_auth else None
    # A proxy behind TLS is trusted by the same certificates, but is not shown ours.
    tls = TLS(ca=access.tls.ca, verify=access.tls.verify)
    context = _context(tls) if access.proxy.startswith("https:") else None
    return urllib3.ProxyManager(access.proxy, proxy_headers=headers, proxy_ssl_context=context, **options)


def _context(tls: TLS) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = PatientTLSSocket
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # As in Go, any certificate of the bundle is an anchor of trust, be it an intermediate one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca:
        try:
            context.load_verify_locations(cadata=tls.ca)
        except (ssl.SSLError, ValueError) as error:
            raise KubeError(f"certificate authority: {_told(error)}") from None
    else:
        context.load_default_certs()
    if tls.certificate:
        _load_certificate(context, tls)
    return context


def _load_certificate(context: ssl.SSLContext, tls: TLS) -> None:
    """Load our certificate and key. The module reads them from files only: from ones in memory, which end here."""
    descriptors = []
    try:
        for data in (tls.certificate, tls.key):
            descriptors.append(os.memfd_create("pem", os.MFD_CLOEXEC))
            with os.fdopen(os.dup(descriptors[-1]), "wb") as file:
                file.write(data)
        certificate, key = (f"/proc/self/fd/{descriptor}" for descriptor in descriptors)
        # A password, so that an encrypted key is an error and not a question on a terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise KubeError(f"client certificate and key: {_told(error)}") from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _told(error: BaseException) -> str:
    """Return what went wrong, in the words of the innermost error."""
    inner: BaseException = error
    for _ in range(10):
        below = inner.__cause__ or next((arg for arg in inner.args if isinstance(arg, BaseException)), None)
        if below is None:
            break
        inner = below
    match inner:
        case ssl.SSLCertVerificationError():
            return f"the server's certificate is not accepted: {inner.verify_message}"
        case ssl.SSLError():
            return f"TLS: {inner.reason or inner}"
        case TimeoutError() if inner.errno is None:
            return str(inner)
        case OSError() if inner.strerror:
            return inner.strerror.lower()
        case _:
            return str(inner) or type(inner).__name__
