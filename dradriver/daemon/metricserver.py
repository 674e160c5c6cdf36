"""An HTTP server for a few scrapers: who holds connections or opens many takes nothing from the daemon."""

import contextlib
import logging
import socket
import sys
import threading
import time
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 8
"""At a time; more are closed at once."""

REQUEST_SECONDS: Final = 5.0
"""From the connection to the end of the answer; what takes longer is cut off."""

_LOOK_SECONDS: Final = 0.2
_PAUSE_SECONDS: Final = 0.1  # after a connection that could not be taken, as without descriptors


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS  # for each read

    def log_message(self, *args: object) -> None:
        """Say nothing of requests."""


class MetricServer(ThreadingMixIn, WSGIServer):
    """Serves the metrics of a registry to a few at a time."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Listen. Raises OSError where the address cannot be had."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        self._guard = threading.Lock()
        self._since: dict[Any, float] = {}
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(make_wsgi_app(registry))

    def server_bind(self) -> None:
        """Bind; unlike the base class without asking for the name of this host, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def serve(self) -> None:
        """Serve until `shutdown`."""
        self.serve_forever(_LOOK_SECONDS)

    def get_request(self) -> Any:
        """Take a connection; where that cannot be done it is tried again, but not at once."""
        try:
            return super().get_request()
        except OSError as error:
            log.debug("a connection cannot be taken: %s", error)
            time.sleep(_PAUSE_SECONDS)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether there is room; a connection without is closed."""
        del request, client_address
        with self._guard:
            return len(self._since) < MAX_CONNECTIONS

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread."""
        with self._guard:
            self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._guard:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off what takes too long though it goes on; called several times a second."""
        before = time.monotonic() - REQUEST_SECONDS
        with self._guard:
            for request, since in self._since.items():
                if since < before:
                    # The other side may be gone already.
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave it at the log that somebody went away, or was cut off."""
        del request, client_address
        log.debug("a scrape was not answered: %r", sys.exception())
