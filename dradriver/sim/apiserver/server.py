"""The stand-in API server: what a Kubernetes API server is to a DRA driver, in memory, over real HTTP."""

import logging
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dradriver.documents import load_documents
from dradriver.model.text import plain
from dradriver.sim.apiserver import protobuf
from dradriver.sim.apiserver.checks import Target
from dradriver.sim.apiserver.control import Control
from dradriver.sim.apiserver.discovery import AGGREGATED, EMPTY_V2, PROTOBUF_V2, Discovery, version_info
from dradriver.sim.apiserver.errors import ApiError
from dradriver.sim.apiserver.http import Cut, HttpServer, Reply, Request, Response, Stream
from dradriver.sim.apiserver.kinds import ALL
from dradriver.sim.apiserver.listing import Lists
from dradriver.sim.apiserver.replies import error_response, json_response, text_response, warning_headers
from dradriver.sim.apiserver.requests import LoggedRequest, RequestLog
from dradriver.sim.apiserver.rest import APPLY_PATCH, PATCHES, Admit, Options, Outcome, Rest, User
from dradriver.sim.apiserver.routes import Route, route
from dradriver.sim.apiserver.selectors import selector
from dradriver.sim.apiserver.store import HISTORY, Store, encode
from dradriver.sim.apiserver.tables import table
from dradriver.sim.apiserver.tls import make_certificate, server_context
from dradriver.sim.apiserver.validation import PanickedError, Validation
from dradriver.sim.apiserver.watch import Watch, watch_options

log = logging.getLogger("dradriver.sim.apiserver")

ADMINISTRATOR: Final = User("kubernetes-admin", ("system:masters", "system:authenticated"))
_PROBES: Final = frozenset({"/healthz", "/livez", "/readyz"})
_OPEN: Final = frozenset({*_PROBES, "/version"})
_FIELD_VALIDATIONS: Final = ("Ignore", "Warn", "Strict")
_OPTIONS: Final = {"PUT": "UpdateOptions", "PATCH": "PatchOptions", "DELETE": "DeleteOptions"}
_MANAGER_LENGTH: Final = 128
_YAML: Final = frozenset({"application/yaml", "text/yaml", "application/x-yaml"})


class ApiServer:
    """A stand-in API server on the loopback address. A context manager, or `start` and `stop`.

    version         of Kubernetes: "1.34" to "1.37", with or without a patch
    gates           feature gates that differ from the version's defaults
    tls             whether to serve HTTPS, with a certificate of its own
    port            to listen on; any free one without
    token           bearer token that is needed then, and makes the administrator
    users           further users by their bearer tokens
    admit           asked before a change is stored, as validating admission policies are
    history         how many changes of a kind a watch can resume over
    bookmark_seconds how often watches that allow bookmarks get one
    garbage_collection whether an object goes when its owners are gone, as with the controller manager

    `store` holds the objects, `requests` what was asked, `faults` makes things go wrong.
    """

    def __init__(
        self,
        *,
        version: str = "1.36",
        gates: Mapping[str, bool] | None = None,
        tls: bool = False,
        port: int = 0,
        token: str = "",
        users: Mapping[str, User] | None = None,
        admit: Admit | None = None,
        history: int = HISTORY,
        bookmark_seconds: float = 60.0,
        garbage_collection: bool = True,
    ) -> None:
        self.store = Store(history, garbage_collection)
        self.requests = RequestLog()
        self._users = dict(users or {}) | ({token: ADMINISTRATOR} if token else {})
        self._token = token
        self._bookmark_seconds = bookmark_seconds
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._certificate: Path | None = None
        self._ended = threading.Event()
        self._validation = Validation(version, gates or {})
        self._rest = Rest(self.store, self._validation, admit)
        self._lists = Lists(self.store)
        self._set_discovery()
        context = None
        if tls:
            self._directory = tempfile.TemporaryDirectory(prefix="dradriver-apiserver-")
            self._certificate, key = make_certificate(Path(self._directory.name))
            context = server_context(self._certificate, key)
        self._http = HttpServer(self._handle, port, context)
        self.faults = Control(self._http, self.store, self._lists)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listen. Raises OSError."""
        self._http.listen()

    def stop(self) -> None:
        """Close all connections and end all threads."""
        self._ended.set()
        self.faults.stop()
        self._http.stop()
        if self._directory is not None:
            self._directory.cleanup()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self._http.port}"

    @property
    def certificate(self) -> Path | None:
        """The PEM file that clients trust; None without TLS."""
        return self._certificate

    @property
    def version(self) -> str:
        """The version of Kubernetes, as given."""
        return self._validation.version

    @property
    def admit(self) -> Admit | None:
        """What is asked before a change is stored."""
        return self._rest.admit

    @admit.setter
    def admit(self, admit: Admit | None) -> None:
        self._rest.admit = admit

    def upgrade(self, version: str | None = None, gates: Mapping[str, bool] | None = None) -> None:
        """Become another version, or switch gates, with the stored objects kept. Watches and connections stay.

        Without `version` it stays; `gates` are all that differ from the defaults. Raises ValueError.
        """
        self._validation.switch(version or self.version, gates or {})
        self._set_discovery()

    def write_kubeconfig(self, path: Path, token: str | None = None) -> None:
        """Write a kubeconfig for this server, for the administrator or whose token is given."""
        cluster: dict[str, str] = {"server": self.url}
        if self._certificate is not None:
            cluster["certificate-authority"] = str(self._certificate)
        used = self._token if token is None else token
        name = "dradriver-sim"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": used} if used else {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
            "current-context": name,
        }
        path.write_bytes(encode(config))  # JSON is YAML
        path.chmod(0o600)

    def _set_discovery(self) -> None:
        self._served = frozenset(kind for kind in ALL if self._validation.serves(kind))
        self._discovery = Discovery([kind for kind in ALL if kind in self._served], self._validation.version)

    def _handle(self, request: Request) -> Reply:
        entry = self.requests.add(request.method, request.path, request.query, request.headers)
        if delay := self.faults.delay():
            self._ended.wait(delay)
        fault = self.faults.pick(request)
        reply = fault.reply(None) if fault and not fault.after else self._answer(request, entry)
        if fault and fault.after:
            if isinstance(reply, Stream):
                reply.close()
            reply = fault.reply(reply if isinstance(reply, Response) else None)
        match reply:
            case Response():
                entry.status = reply.status
            case Stream():
                entry.status = 200
            case _:
                entry.status = 0
        return reply

    def _answer(self, request: Request, entry: LoggedRequest) -> Reply:
        try:
            return self._served_reply(request, entry)
        except ApiError as error:
            return error_response(error)
        except PanickedError:
            return Cut()
        except Exception:  # a fault of the stand-in must be seen, and must not end the connection's thread
            log.exception("%s %s", plain(request.method), plain(request.path))
            return error_response(ApiError(500, "Internal error occurred: see the server's log"))

    def _served_reply(self, request: Request, entry: LoggedRequest) -> Reply:
        path = request.path
        user = self._user(request)
        entry.user = user.name
        found = route(path, self._served)
        if found is not None:
            entry.kind, entry.subresource = found.kind.name, found.subresource
            return self._api(request, found, user, entry)
        if request.method not in {"GET", "HEAD"}:
            raise ApiError.no_such_path()
        if path in _PROBES:
            return text_response("ok")
        if path == "/version":
            return json_response(version_info(self._validation.version))
        if path == "/openapi/v2" and "proto-openapi" in request.headers.get("accept", ""):
            return Response(200, EMPTY_V2, PROTOBUF_V2)
        aggregated = "as=APIGroupDiscoveryList" in request.headers.get("accept", "")
        document = self._discovery.document(path.rstrip("/") or "/", aggregated)
        if document is None:
            raise ApiError.no_such_path()
        listed = document.get("kind") == "APIGroupDiscoveryList"
        return Response(200, encode(document), AGGREGATED if listed else "application/json")

    def _user(self, request: Request) -> User:
        if not self._users:
            return ADMINISTRATOR
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        user = self._users.get(token)
        if user is None and request.path not in _OPEN:
            raise ApiError(401, "Unauthorized")
        return user or User("system:anonymous", ("system:unauthenticated",))

    def _api(self, request: Request, found: Route, user: User, entry: LoggedRequest) -> Reply:
        _check_accept(request)
        if request.method == "GET":
            return self._read(request, found, entry)
        entry.verb = _changing_verb(request, found)
        outcome = self._change(entry.verb, request, Target(*found), _options(request, user))
        entry.changed = outcome.changed
        return Response(outcome.status, outcome.body, headers=warning_headers(outcome.warnings))

    def _read(self, request: Request, found: Route, entry: LoggedRequest) -> Reply:
        kind, query = found.kind, request.query
        as_table = _as_table(request)
        if found.name:
            entry.verb = "get"
            stored = self.store.find(kind, found.namespace, found.name)
            if stored is None:
                raise ApiError.not_found(kind, found.name)
            if as_table:
                metadata = {"resourceVersion": str(stored.version)}
                return json_response(table(kind.name, [stored], metadata, as_table))
            return Response(200, stored.body)
        chosen = selector(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        if query.get("watch") not in {"true", "1"}:
            entry.verb = "list"
            return Response(200, self._lists.answer(kind, found.namespace, chosen, query, as_table))
        entry.verb = "watch"
        options = watch_options(kind, found.namespace, chosen, query, as_table)
        if self.faults.watches.takes_gone_status():
            text = f"too old resource version: {query.get('resourceVersion', '')} ({self.store.version})"
            raise ApiError.expired(text)
        watch = Watch(self.store, options, self.faults.watches, self._bookmark_seconds)
        return Stream(watch.run, watch.close)

    def _change(self, verb: str, request: Request, target: Target, options: Options) -> Outcome:
        match verb:
            case "create":
                return self._rest.create(target, _json_body(request), options)
            case "update":
                return self._rest.update(target, _json_body(request), options)
            case "patch" | "apply":
                text = _json_body(request, yaml=verb == "apply")
                return self._rest.patch(target, _media_type(request), text, options)
        text = _json_body(request) if request.body else b""
        if verb == "delete":
            return self._rest.delete(target, text, options, request.query)
        query = request.query
        chosen = selector(target.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        return self._rest.delete_all(target, chosen.matches, text, options, query)


def _changing_verb(request: Request, found: Route) -> str:
    """Return the verb of a request that is no GET. Raises ApiError (405, 415)."""
    collection = not found.name
    match request.method:
        case "POST" if collection and (found.namespace or not found.kind.namespaced):
            return "create"
        case "PUT" if not collection:
            return "update"
        case "PATCH" if not collection:
            content_type = _media_type(request)
            if content_type not in PATCHES:
                raise _unsupported(PATCHES)
            return "apply" if content_type == APPLY_PATCH else "patch"
        case "DELETE" if not found.subresource:
            return "deletecollection" if collection else "delete"
        case _:
            raise ApiError.unsupported_method()


def _check_accept(request: Request) -> None:
    accept = request.headers.get("accept", "")
    if accept and not any(known in accept for known in ("json", "*/*", "application/*")):
        raise ApiError(
            406,
            "only the following media types are accepted: application/json, application/json;stream=watch",
        )


def _as_table(request: Request) -> str:
    """Return what the rows of a table carry; empty where no table is asked for."""
    if "as=Table" not in request.headers.get("accept", ""):
        return ""
    include = request.query.get("includeObject") or "Metadata"
    if include not in {"Metadata", "Object", "None"}:
        raise ApiError(400, f"unrecognized includeObject value: {include!r}")
    return include


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _unsupported(types: Sequence[str]) -> ApiError:
    return ApiError(
        415,
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(types),
    )


def _json_body(request: Request, yaml: bool = False) -> bytes:
    """Return the body as JSON. Raises ApiError (400, 415)."""
    content_type = _media_type(request)
    if content_type == protobuf.CONTENT_TYPE:
        try:
            return encode(protobuf.namespace(request.body))
        except ValueError:
            raise _unsupported(("application/json", "application/yaml")) from None
    yaml = yaml or content_type in _YAML
    if not yaml and content_type not in {"", "application/json", *PATCHES}:
        raise _unsupported(("application/json", "application/yaml"))
    body = request.body
    if not yaml or body.lstrip().startswith(b"{"):
        return body
    try:
        documents = load_documents(body)
    except ValueError as error:
        raise ApiError(400, f"error converting YAML to JSON: {error}") from None
    if len(documents) != 1:
        raise ApiError(400, "error converting YAML to JSON: one document is expected")
    return encode(documents[0])


def _options(request: Request, user: User) -> Options:
    query = request.query
    applies = request.method == "PATCH" and _media_type(request) == APPLY_PATCH
    kind = _OPTIONS.get(request.method, "CreateOptions")
    dry_run = query.get("dryRun", "")
    if dry_run not in {"", "All"}:
        raise _bad_option(kind, "dryRun", f'Unsupported value: "{dry_run}": supported values: "All"')
    validation = query.get("fieldValidation", "") or "Warn"
    if validation not in _FIELD_VALIDATIONS:
        supported = ", ".join(f'"{value}"' for value in _FIELD_VALIDATIONS)
        raise _bad_option(
            kind, "fieldValidation", f'Unsupported value: "{validation}": supported values: {supported}'
        )
    manager = query.get("fieldManager", "")
    if applies and not manager:
        raise _bad_option(
            kind, "fieldManager", "Required value: is required for apply patch", "FieldValueRequired"
        )
    if len(manager) > _MANAGER_LENGTH or not (manager.isprintable() or not manager):
        raise _bad_option(kind, "fieldManager", f"Invalid value: {manager!r}", "FieldValueInvalid")
    if "force" in query and request.method == "PATCH" and not applies:
        raise _bad_option(
            kind, "force", "Forbidden: may not be specified for non-apply patch", "FieldValueForbidden"
        )
    agent = request.headers.get("user-agent", "unknown").partition("/")[0][:_MANAGER_LENGTH]
    return Options(user, manager or agent, dry_run == "All", validation, query.get("force") in {"true", "1"})


def _bad_option(kind: str, name: str, text: str, reason: str = "FieldValueNotSupported") -> ApiError:
    causes = [{"reason": reason, "message": text, "field": name}]
    return ApiError(
        422,
        f'{kind}.meta.k8s.io "" is invalid: {name}: {text}',
        details={"group": "meta.k8s.io", "kind": kind, "causes": causes},
    )
