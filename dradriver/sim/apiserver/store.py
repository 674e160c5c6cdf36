"""The objects of the stand-in API server, in memory, with the history that watches resume from.

Every change of any kind gets the next resourceVersion, as with etcd. Objects are serialised once, when they are stored;
what a caller gets of this module is never changed afterwards, and must not be.

Facts: watch semantics of https://kubernetes.io/docs/reference/using-api/api-concepts/; garbage collection of
k8s.io/controller-manager: an object whose owners are all gone goes too.
"""

import contextlib
import copy
import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from dradriver.sim.apiserver.apply import UPDATE, Owner, owned_after_update, read_owners, write_owners
from dradriver.sim.apiserver.kinds import ALL, BY_NAME, NAMESPACE, Kind
from dradriver.sim.apiserver.metadata import new_metadata
from dradriver.sim.apiserver.rules.body import Number
from dradriver.sim.apiserver.rules.times import utc_text

Body = Mapping[str, Any]
Objects = list[dict[str, Any]]
Key = tuple[str, str]
"""Namespace, empty for a kind without, and name."""

HISTORY: Final = 1000
"""How many changes of one kind are remembered for watches that resume."""

DIRECT: Final = "direct"
"""Who owns the fields of objects that came past the API."""

_TYPE_META: Final = ("apiVersion", "kind")


def encode(value: Any) -> bytes:
    """Return a value as compact JSON. Texts that UTF-8 cannot say are written with escapes."""
    try:
        return msgspec.json.encode(value, enc_hook=_as_sent)
    except (OverflowError, UnicodeEncodeError, RecursionError, msgspec.MsgspecError):
        return json.dumps(value, separators=(",", ":")).encode()


def _as_sent(value: Any) -> Any:
    if isinstance(value, Number):
        return msgspec.Raw(value.text.encode())
    raise TypeError(f"{type(value).__name__} is not JSON")


class Stored:
    """One version of an object.

    inner     its JSON without the opening brace, kind and apiVersion
    checked   whether it has been through the rules; a test may put anything here
    """

    __slots__ = ("checked", "inner", "key", "kind", "obj", "version")

    def __init__(self, kind: Kind, obj: Mapping[str, Any], version: int, checked: bool = True) -> None:
        self.kind = kind
        self.checked = checked
        self.obj: Body = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            **{name: value for name, value in obj.items() if name not in _TYPE_META},
        }
        metadata = obj["metadata"]
        self.key: Key = (metadata.get("namespace", ""), metadata["name"])
        self.version = version
        self.inner = encode({name: value for name, value in obj.items() if name not in _TYPE_META})[1:]

    @property
    def name(self) -> str:
        """Its name."""
        return self.key[1]

    @property
    def uid(self) -> str:
        """Its UID."""
        uid: str = self.obj["metadata"]["uid"]
        return uid

    @property
    def body(self) -> bytes:
        """Its JSON."""
        return head(self.kind) + self.inner


def head(kind: Kind) -> bytes:
    """Return the JSON of an object of that kind up to where `inner` starts."""
    return _HEADS[kind.name]


def list_body(kind: Kind, objects: list[Stored], metadata: Mapping[str, Any]) -> bytes:
    """Return the JSON of a list. Its items have no kind and no apiVersion, as with the API server."""
    start = f'{{"kind":"{kind.name}List","apiVersion":"{kind.api_version}","metadata":'.encode()
    items = b",".join(b"{%b" % stored.inner for stored in objects)
    return b'%b%b,"items":[%b]}' % (start, encode(metadata), items)


_HEADS: Final[Mapping[str, bytes]] = {
    kind.name: f'{{"kind":"{kind.name}","apiVersion":"{kind.api_version}",'.encode() for kind in ALL
}


class Change(NamedTuple):
    """An object was added, modified or deleted. `new` of a deleted one is its last state with the new version."""

    type: str
    new: Stored
    old: Stored | None

    @property
    def version(self) -> int:
        """The resourceVersion that the change made."""
        return self.new.version


class ExpiredError(Exception):
    """A watch cannot resume from that version: what followed is not remembered."""

    def __init__(self, asked: int, current: int) -> None:
        super().__init__(f"too old resource version: {asked} ({current})")


class Subscription:
    """What one watch has still to see. Readable through `fileno` whenever there is something."""

    def __init__(self, kind: Kind, earlier: list[Change]) -> None:
        self.kind = kind
        self._changes = deque(earlier)
        self._signal = os.eventfd(1 if earlier else 0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._guard = threading.Lock()
        self._open = True

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._signal

    def put(self, change: Change) -> None:
        """Add a change; any thread may."""
        self._changes.append(change)
        self.wake()

    def wake(self) -> None:
        """Make the descriptor readable."""
        with self._guard:
            if self._open:
                os.eventfd_write(self._signal, 1)

    def take(self) -> Iterator[Change]:
        """Yield what there is, without waiting."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._signal)
        while self._changes:
            yield self._changes.popleft()

    def close(self) -> None:
        """Give the descriptor back."""
        with self._guard:
            if self._open:
                self._open = False
                os.close(self._signal)


class _Shelf:
    """The objects of one kind."""

    def __init__(self, history: int) -> None:
        self.objects: dict[Key, Stored] = {}
        self.changes: deque[Change] = deque(maxlen=history)
        self.floor = 0
        self.subscriptions: list[Subscription] = []


class Store:
    """All objects. Thread-safe.

    `create`, `get`, `list`, `replace` and `delete` are for tests and for whoever plays the scheduler: objects go in as
    they are, with no rule applied but what metadata must have. The server itself uses the rest.
    """

    def __init__(self, history: int = HISTORY, garbage_collection: bool = True) -> None:
        self.writing = threading.RLock()
        """Held for as long as a change is being prepared, so that no two get in each other's way."""
        self.garbage_collection = garbage_collection
        self._guard = threading.RLock()
        self._version = 1
        self._shelves = {kind.name: _Shelf(history) for kind in ALL}
        self._by_uid: dict[str, Stored] = {}
        self._dependents: dict[str, dict[str, Stored]] = {}
        for name in ("default", "kube-system", "kube-node-lease", "kube-public"):
            self.ensure_namespace(name)

    @property
    def version(self) -> int:
        """The resourceVersion of the last change; all subscriptions have got what was changed up to it."""
        with self._guard:
            return self._version

    def find(self, kind: Kind, namespace: str, name: str) -> Stored | None:
        """Return the object, or None."""
        return self._shelves[kind.name].objects.get((namespace, name))

    def snapshot(self, kind: Kind, namespace: str = "") -> tuple[list[Stored], int]:
        """Return the objects of a kind, of one namespace or of all, in the order of their keys, and the version."""
        with self._guard:
            objects = list(self._shelves[kind.name].objects.values())
            version = self._version
        if namespace:
            objects = [stored for stored in objects if stored.key[0] == namespace]
        objects.sort(key=lambda stored: stored.key)
        return objects, version

    def put(self, kind: Kind, obj: Mapping[str, Any], checked: bool = True) -> Stored:
        """Store an object, which is complete but for its resourceVersion, in place of the one of its name.

        `checked` says whether it has been through the rules.
        """
        with self.writing:
            with self._guard:
                self._version += 1
                metadata = {**obj["metadata"], "resourceVersion": str(self._version)}
                stored = Stored(kind, {**obj, "metadata": metadata}, self._version, checked)
                objects = self._shelves[kind.name].objects
                old = objects.get(stored.key)
                objects[stored.key] = stored
                self._index(stored, old)
                self._tell(Change("MODIFIED" if old else "ADDED", stored, old))
            if self.garbage_collection and self._orphaned(stored):
                self.remove(stored)
            return stored

    def remove(self, stored: Stored) -> Stored:
        """Remove an object and all that it owned; return its last state with the version of the removal."""
        with self.writing:
            if self.find(stored.kind, *stored.key) is None:
                return stored  # gone already, with an owner that was removed just before
            with self._guard:
                self._version += 1
                metadata = {**stored.obj["metadata"], "resourceVersion": str(self._version)}
                last = Stored(stored.kind, {**stored.obj, "metadata": metadata}, self._version)
                self._shelves[stored.kind.name].objects.pop(stored.key, None)
                self._index(None, stored)
                self._tell(Change("DELETED", last, stored))
            if stored.kind is NAMESPACE:
                self._empty_namespace(stored.name)
            if self.garbage_collection:
                self._collect(stored.uid)
            return last

    def subscribe(self, kind: Kind, since: int | None) -> tuple[Subscription, int]:
        """Return a subscription that starts after version `since`, or now, and the current version.

        Raises ExpiredError.
        """
        with self._guard:
            shelf = self._shelves[kind.name]
            earlier: list[Change] = []
            if since is not None:
                if since < shelf.floor:
                    raise ExpiredError(since, self._version)
                earlier = [change for change in shelf.changes if change.version > since]
            subscription = Subscription(kind, earlier)
            shelf.subscriptions.append(subscription)
            return subscription, self._version

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription."""
        with self._guard:
            subscriptions = self._shelves[subscription.kind.name].subscriptions
            if subscription in subscriptions:
                subscriptions.remove(subscription)
        subscription.close()

    def forget(self) -> None:
        """Forget all history: no version that anybody has seen can be resumed from."""
        with self._guard:
            self._version += 1
            for shelf in self._shelves.values():
                shelf.changes.clear()
                shelf.floor = self._version

    def ensure_namespace(self, name: str) -> None:
        """Make the namespace unless it is there."""
        with self.writing:
            if self.find(NAMESPACE, "", name) is None:
                obj = {
                    "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
                    "spec": {"finalizers": ["kubernetes"]},
                    "status": {"phase": "Active"},
                }
                self.create({"apiVersion": "v1", "kind": "Namespace", **obj})

    def create(self, obj: Body) -> dict[str, Any]:
        """Store a new object as it is, and its namespace where that is missing; return it with its metadata.

        Raises KeyError for a kind that is not served, ValueError where the name is taken.
        """
        kind = BY_NAME[obj["kind"]]
        with self.writing:
            new = dict(copy.deepcopy(dict(obj)))
            new["metadata"] = new_metadata(kind, new.get("metadata") or {}, "default", datetime.now(UTC))
            namespace, name = new["metadata"].get("namespace", ""), new["metadata"]["name"]
            if self.find(kind, namespace, name) is not None:
                raise ValueError(f"{kind.name} {name} is there already")
            if namespace:
                self.ensure_namespace(namespace)
            return self._directly(kind, new, {"metadata": {}})

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """Return a copy of an object. Raises KeyError."""
        found = BY_NAME[kind]
        stored = self.find(found, namespace if found.namespaced else "", name)
        if stored is None:
            raise KeyError(f"{kind} {name}")
        return copy.deepcopy(dict(stored.obj))

    def list(self, kind: str, namespace: str = "") -> Objects:
        """Return copies of all objects of a kind, of one namespace or of all."""
        found = BY_NAME[kind]
        objects, _ = self.snapshot(found, namespace if found.namespaced else "")
        return [copy.deepcopy(dict(stored.obj)) for stored in objects]

    def replace(self, obj: Body) -> dict[str, Any]:
        """Store all of an object, status included, in place of the one of its name. Raises KeyError.

        Its identity stays; the generation rises where the spec differs.
        """
        kind = BY_NAME[obj["kind"]]
        with self.writing:
            new = copy.deepcopy(dict(obj))
            old = self.get(kind.name, new["metadata"]["name"], new["metadata"].get("namespace", "default"))
            kept = {
                name: old["metadata"][name]
                for name in ("uid", "creationTimestamp", "generation", "managedFields", "namespace")
                if name in old["metadata"]
            }
            new["metadata"] = {**new["metadata"], **kept}
            if kind.generation and new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] += 1
            return self._directly(kind, new, old)

    def _directly(self, kind: Kind, new: dict[str, Any], old: Body) -> dict[str, Any]:
        """Store an object as it is. Its fields have an owner all the same, or the next who applies would drop them."""
        owners = read_owners(old["metadata"].get("managedFields"))
        now = utc_text(datetime.now(UTC))
        for subresource in ("", *kind.subresources):
            owner = Owner(DIRECT, UPDATE, kind.api_version, subresource)
            owners = owned_after_update(kind, old, new, owners=owners, owner=owner, now=now)
        new["metadata"]["managedFields"] = write_owners(owners)
        return copy.deepcopy(dict(self.put(kind, new, checked=False).obj))

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        """Remove an object at once, whatever its finalizers. Raises KeyError."""
        found = BY_NAME[kind]
        with self.writing:
            stored = self.find(found, namespace if found.namespaced else "", name)
            if stored is None:
                raise KeyError(f"{kind} {name}")
            self.remove(stored)

    def dependents(self, uid: str) -> tuple[Stored, ...]:
        """Return the objects that name this one as an owner."""
        with self._guard:
            return tuple(self._dependents.get(uid, {}).values())

    def _index(self, new: Stored | None, old: Stored | None) -> None:
        if old is not None:
            self._by_uid.pop(old.uid, None)
            for owner in _owners(old):
                self._dependents.get(owner["uid"], {}).pop(old.uid, None)
        if new is not None:
            self._by_uid[new.uid] = new
            for owner in _owners(new):
                self._dependents.setdefault(owner["uid"], {})[new.uid] = new

    def _tell(self, change: Change) -> None:
        shelf = self._shelves[change.new.kind.name]
        if len(shelf.changes) == shelf.changes.maxlen:
            shelf.floor = shelf.changes[0].version
        shelf.changes.append(change)
        for subscription in shelf.subscriptions:
            subscription.put(change)

    def _orphaned(self, stored: Stored) -> bool:
        """Whether it names owners, all of kinds that are kept here, and none of them exists."""
        owners = _owners(stored)
        return bool(owners) and all(
            owner.get("kind") in BY_NAME and owner["uid"] not in self._by_uid for owner in owners
        )

    def _collect(self, uid: str) -> None:
        for dependent in self.dependents(uid):
            current = self.find(dependent.kind, *dependent.key)
            if current is not None and self._orphaned(current):
                self.remove(current)
        with self._guard:
            self._dependents.pop(uid, None)

    def _empty_namespace(self, name: str) -> None:
        for kind in ALL:
            if kind.namespaced:
                for stored in self.snapshot(kind, name)[0]:
                    self.remove(stored)


def _owners(stored: Stored) -> list[Body]:
    references = stored.obj["metadata"].get("ownerReferences") or []
    return [owner for owner in references if isinstance(owner, Mapping) and isinstance(owner.get("uid"), str)]
