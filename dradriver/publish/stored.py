"""The slices of one driver on this node as the API server has them: what was heard of them, and from whom."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from dradriver.model import shown
from dradriver.publish.errors import PublishError
from dradriver.slices import Body

_REMEMBERED = 1024
"""Slices that are known to be gone; late news of older ones does not come any more."""


_log = logging.getLogger(__name__)


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str = ""
    generation: int = 0


class _Pool(msgspec.Struct, rename="camel"):
    name: str
    generation: int
    resource_slice_count: int


class _Spec(msgspec.Struct):
    driver: str
    pool: _Pool
    node: str | None = msgspec.field(default=None, name="nodeName")


class _Slice(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec


class _Nameless(msgspec.Struct):
    uid: str


class _Anything(msgspec.Struct):
    metadata: _Nameless


@dataclass(frozen=True, slots=True)
class Stored:
    """A ResourceSlice as it is stored.

    revision   `metadata.resourceVersion`, to be compared for equality only
    edition    `metadata.generation`, which rises with every change of the spec
    """

    name: str
    uid: str
    revision: str
    edition: int
    driver: str
    pool: str
    generation: int
    body: Body
    node: str | None = None

    @classmethod
    def of(cls, body: Any) -> "Stored":
        """Read what the API server sent. Raises PublishError where that is no ResourceSlice."""
        try:
            found = msgspec.convert(body, _Slice)
        except (msgspec.ValidationError, RecursionError) as error:
            raise PublishError(f"what the API server sent is no ResourceSlice: {shown(str(error))}") from None
        metadata, spec = found.metadata, found.spec
        return cls(
            metadata.name,
            metadata.uid,
            metadata.resource_version,
            metadata.generation,
            spec.driver,
            spec.pool.name,
            spec.pool.generation,
            body,
            spec.node,
        )

    @property
    def spec(self) -> Body:
        """The spec of the object."""
        spec: Body = self.body["spec"]
        return spec


class Reader:
    """Reads what was sent of the slices of one node, of one driver or any. What is no slice is told once."""

    def __init__(self, node: str, driver: str | None = None) -> None:
        self._node = node
        self._driver = driver
        self._told = ""

    def read(self, body: Any) -> Stored | None:
        """Return a slice of ours, None for another's, which whatever the server was asked for is none of ours."""
        try:
            stored = Stored.of(body)
        except PublishError as error:
            if str(error) != self._told:
                self._told = str(error)
                _log.warning("an object is passed over: %s", error)
            return None
        if stored.node != self._node or self._driver not in {None, stored.driver}:
            return None
        return stored

    def all(self, objects: Iterable[Any]) -> list[Stored]:
        """Return the slices of ours among these objects."""
        return [stored for stored in map(self.read, objects) if stored is not None]


@dataclass(slots=True)
class _Entry:
    """A slice.

    heard    when it was last heard of, by the cache's own clock
    unseen   only an answer to a request of ours told of it
    news     its last change was taken for one by others
    """

    stored: Stored
    heard: int
    unseen: bool
    news: bool = False


class SliceCache:
    """The slices of one driver on this node, of whatever pool. The handler of their list-and-watch.

    Three sources tell of a slice, and none waits for the others: the watch, lists, and the answers to our own
    requests. A watch can lag behind an answer, and an answer can be read after what was watched later. Of two
    states of one object (by its UID) the one of the higher `metadata.generation` is the newer; where that is equal,
    they differ in metadata only, and the one heard last is believed: a request that was based on the wrong one is
    refused as a conflict. What is known to be deleted does not come back. Only what was read later than anything else
    that is known of a slice is believed whatever it says: a server can be put back to an older state.
    """

    def __init__(self, told: Callable[[], None], node: str, driver: str) -> None:
        """`told` is called after each change that came from elsewhere, and after each list of the watch.

        Slices of another node or driver are passed over, and so is what is no slice.
        """
        self._told = told
        self._reader = Reader(node, driver)
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._clock = 0
        self._edits = 0
        self.lists = 0
        self.listed = False
        self.unsure = False

    @property
    def state(self) -> tuple[int, int]:
        """A value that is another one after each change by others, and after each list of the watch."""
        return self._edits, self.lists

    def slices(self, pool: str | None = None) -> list[Stored]:
        """Return the slices of a pool, of all pools for None, by name."""
        with self._lock:
            found = [entry.stored for entry in self._entries.values()]
        return sorted(
            (stored for stored in found if pool is None or stored.pool == pool),
            key=lambda stored: stored.name,
        )

    # What the watch tells.

    def replaced(self, objects: Iterable[Any]) -> None:
        """Take over a list of all slices.

        What is known otherwise may be younger than the list: that has to be asked.
        """
        with self._lock:
            listed = set()
            for stored in self._reader.all(objects):
                listed.add(stored.uid)
                if not self._take(stored):
                    self.unsure = True
            for uid, entry in list(self._entries.items()):
                if uid in listed:
                    entry.unseen = False
                elif entry.unseen:
                    self.unsure = True
                else:
                    del self._entries[uid]
                    self._edits += 1
            self.listed = True
            self.lists += 1
        self._told()

    def changed(self, kind: str, changed: Any) -> None:
        """Take over one event of the watch."""
        stored = None if kind == "DELETED" else self._reader.read(changed)
        with self._lock:
            before = self._edits
            if kind == "DELETED":
                # What is gone is known by its UID, whatever it had become.
                uid = _uid_of(changed)
                if uid and self._forget(uid):
                    self._edits += 1
            elif stored:
                self._take(stored)
                if stored.uid in self._entries:
                    self._entries[stored.uid].unseen = False
            news = self._edits != before
        if news:
            self._told()

    # What requests of ours tell.

    def mark(self) -> int:
        """Return the time by this cache, to be taken before a list is asked for."""
        with self._lock:
            self._clock += 1
            return self._clock

    def listed_since(self, mark: int, objects: Iterable[Any]) -> None:
        """Take over a list of all slices that was asked for at `mark`; what was heard of since then stays."""
        with self._lock:
            listed = set()
            for stored in self._reader.all(objects):
                listed.add(stored.uid)
                new = stored.uid not in self._entries
                self._take(stored, since=mark)
                if new and stored.uid in self._entries:
                    self._entries[stored.uid].unseen = True
            for uid, entry in list(self._entries.items()):
                if uid not in listed and entry.heard <= mark:
                    del self._entries[uid]
                    self._edits += 1
            self.listed = True
            self.unsure = False

    def answered(self, body: Any) -> Stored:
        """Take over the answer to a request that wrote a slice."""
        stored = Stored.of(body)
        with self._lock:
            self._take(stored, ours=True)
        return stored

    def read_since(self, mark: int, body: Any) -> None:
        """Take over a slice that was asked for at `mark`."""
        stored = Stored.of(body)
        with self._lock:
            self._take(stored, since=mark)

    def forget(self, stored: Stored) -> None:
        """Take over that a slice is deleted, or was found missing."""
        with self._lock:
            self._forget(stored.uid)

    def doubt(self) -> None:
        """Remember that a request may have had an effect that is not known: a list is due."""
        with self._lock:
            self.unsure = True

    def _take(self, stored: Stored, *, ours: bool = False, since: int | None = None) -> bool:
        """Take over a state of a slice; return whether it was believed.

        ours    it is the answer to a write of ours
        since   it was read later than this time, by which older knowledge is overruled
        """
        entry = self._entries.get(stored.uid)
        known = self._gone.get(stored.uid) if entry is None else entry.heard
        overruled = since is not None and known is not None and known <= since
        if stored.uid in self._gone:
            if not overruled:
                return False
            del self._gone[stored.uid]
        self._clock += 1
        if entry is None:
            entry = self._entries[stored.uid] = _Entry(stored, self._clock, unseen=ours)
        elif stored.revision == entry.stored.revision:
            entry.heard = self._clock
            if ours and entry.news:
                # The watch was faster than the answer.
                entry.news = False
                self._edits -= 1
            return True
        elif stored.edition < entry.stored.edition and not overruled:
            return False
        else:
            entry.stored, entry.heard = stored, self._clock
        entry.news = not ours
        self._edits += entry.news
        return True

    def _forget(self, uid: str) -> bool:
        self._clock += 1
        self._gone[uid] = self._clock
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        return self._entries.pop(uid, None) is not None


def _uid_of(body: Any) -> str:
    try:
        return msgspec.convert(body, _Anything).metadata.uid
    except (msgspec.ValidationError, RecursionError):
        return ""
