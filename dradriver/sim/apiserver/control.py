"""All faults of one server: of its requests, its watches, its network, and what others do to its objects."""

import threading

from dradriver.sim.apiserver.faults import Faults, WatchFaults
from dradriver.sim.apiserver.http import HttpServer
from dradriver.sim.apiserver.kinds import SLICE
from dradriver.sim.apiserver.listing import Lists
from dradriver.sim.apiserver.selectors import selector
from dradriver.sim.apiserver.store import Store


class Control(Faults):
    """The faults of a server, as `ApiServer.faults`. Thread-safe; times in seconds."""

    def __init__(self, http: HttpServer, store: Store, lists: Lists, seed: int = 0) -> None:
        super().__init__(seed)
        self.watches = WatchFaults()
        """Orders for the watches that are open."""
        self._http = http
        self._store = store
        self._lists = lists
        self._timer: threading.Timer | None = None
        self._ended = False

    @property
    def refusing(self) -> bool:
        """Whether connections are refused."""
        return not self._http.listening

    def refuse(self, seconds: float | None = None, keep_connections: bool = False) -> None:
        """Refuse connections, for a time or until `accept`; those that there are are cut unless kept."""
        self._cancel()
        self._http.refuse()
        if not keep_connections:
            self._http.drop_connections()
        if seconds is not None:
            self._timer = threading.Timer(seconds, self._http.listen)
            self._timer.daemon = True
            self._timer.start()

    def accept(self) -> None:
        """Accept connections again, on the same port. Raises OSError."""
        self._cancel()
        self._http.listen()

    def drop_connections(self) -> None:
        """Cut all connections that there are; new ones are accepted."""
        self._http.drop_connections()

    def break_handshakes(self, times: int = 1) -> None:
        """Break the next TLS handshakes."""
        self._http.broken_handshakes += times

    def forget_history(self) -> None:
        """Forget what watches and lists in pages resume from: the next that tries is told that it has expired."""
        self._store.forget()
        self._lists.forget()

    def expire_watches(self, status: bool = False) -> None:
        """Let all watches expire: open ones get an ERROR event with code 410, and so do those that resume.

        With `status`, open ones are closed, and as many of the next watch requests (at least one) are answered with
        HTTP status 410 in place of a stream.
        """
        self.forget_history()
        if status:
            self.watches.gone_status += max(1, self.watches.open)
            self.watches.close()
        else:
            self.watches.expire()

    def wipe_slices(self, node: str = "", driver: str = "") -> int:
        """Delete the slices of a node and driver, of all where empty, as a kubelet does; return how many."""
        wanted = {"spec.nodeName": node, "spec.driver": driver}
        chosen = selector(
            SLICE, fields=",".join(f"{name}={value}" for name, value in wanted.items() if value)
        )
        with self._store.writing:
            slices, _ = self._store.snapshot(SLICE)
            gone = [stored for stored in slices if chosen.matches(stored.obj)]
            for stored in gone:
                self._store.remove(stored)
        return len(gone)

    def clear(self) -> None:
        """Take back everything, and accept connections."""
        super().clear()
        self.watches.gone_status = 0
        self._http.broken_handshakes = 0
        if not self._ended:
            self.accept()

    def stop(self) -> None:
        """Let nothing happen any more: the server stops."""
        self._ended = True
        self._cancel()

    def _cancel(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
