"""The API server as a kubeconfig names it: tokens, certificates, exec plugins, proxies.

What the credentials mean is left to the loader of the `kubernetes` package. Importing it costs 44 MiB, so that happens
here alone, and only when it is used. Its client is not: it knows no deadlines.
"""

import ipaddress
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from dradriver.clock import SYSTEM, Clock
from dradriver.documents import read_documents
from dradriver.kube.connection import (
    SERVICE_ACCOUNT,
    TLS,
    Access,
    Connection,
    certificates,
    checked_header,
    checked_server,
    in_cluster,
    read_file,
    signature,
)
from dradriver.kube.errors import KubeError, StoppedError, one_line
from dradriver.kube.limits import Limits
from dradriver.model.text import shown

LOAD_SECONDS = 60.0
"""For the first load; an exec plugin may ask somebody something."""

RETRY_SECONDS = 10.0
"""Between two loads that failed or gave nothing new: an exec plugin is not run for every request."""

_MAX_FILE_BYTES = 4 << 20

_PATHS = {
    "clusters": ("certificate-authority",),
    "users": ("client-certificate", "client-key", "tokenFile"),
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """One context of the files, with what it names, and paths made absolute.

    directory  of the file that the user stands in: exec plugins run there
    files      whose change means to load again
    secrets    texts that no message may have
    """

    context: Mapping[str, Any]
    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    directory: str
    files: tuple[Path, ...]
    secrets: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Loaded:
    access: Access
    signatures: Mapping[Path, object]
    seconds: float | None  # that it is good for


class _Load:
    """A load in a thread of its own: an exec plugin may take as long as it likes, a request may not."""

    def __init__(self, load: Callable[[], _Loaded]) -> None:
        self._load = load
        self.loaded: _Loaded | None = None
        self.error = ""
        self.done = threading.Event()
        threading.Thread(target=self._run, name="kubeconfig", daemon=True).start()

    def _run(self) -> None:
        try:
            self.loaded = self._load()
        except KubeError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - those who wait need an answer; its text may quote a secret
            self.error = f"kubeconfig: cannot be loaded: {type(error).__name__}"
        finally:
            self.done.set()


class Kubeconfig(Connection):
    """A context of a kubeconfig, loaded again when its files change, its credentials end or are not accepted."""

    def __init__(self, paths: tuple[Path, ...], context: str, clock: Clock) -> None:
        self._paths = paths
        self._context = context
        self._clock = clock
        self._guard = threading.Lock()
        self._running: _Load | None = None
        self._tried_at = clock.now()
        self._failed = ""
        self._complaint = ""
        loaded = self._again(Limits(clock, clock.now() + LOAD_SECONDS))
        super().__init__(loaded.access.server)
        self._access = loaded.access

    def access(self, limits: Limits) -> Access:
        """Return what the kubeconfig says, loaded again where that is due."""
        changed = any(signature(path) != known for path, known in self._signatures.items())
        if not changed and not _is_past(self._clock, self._renew_at):
            return self._access
        try:
            if self._recent and self._failed:
                raise KubeError(self._failed)
            if changed or not self._recent:
                return self._again(limits).access
        except StoppedError:
            raise
        except KubeError as error:
            if _is_past(self._clock, self._until):
                raise
            # Files that are being replaced right now, for example; what was loaded serves for a while yet.
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.warning("the last credentials are used as long as they serve: %s", error)
        return self._access

    def renewed(self, used: Access, limits: Limits) -> Access:
        """Return what the kubeconfig says now; an exec plugin is run at most every `RETRY_SECONDS`."""
        if self._access != used or self._recent:
            return self._access
        return self._again(limits).access

    @property
    def _recent(self) -> bool:
        """Whether the last load has ended and was begun only just now."""
        return self._running is None and self._clock.now() - self._tried_at < RETRY_SECONDS

    def _again(self, limits: Limits) -> _Loaded:
        """Load, or wait for the load that somebody else began. Raises KubeError."""
        with self._guard:
            if self._running is None:
                self._tried_at = self._clock.now()
                self._running = _Load(lambda: _load(_choose(self._paths, self._context)))
            load = self._running
        with limits.within(limits.left, "credentials of the kubeconfig"):
            while not load.done.is_set():
                try:
                    load.done.wait(limits.slice())
                except TimeoutError as error:
                    raise KubeError(f"{error}: an exec plugin?") from None
        with self._guard:
            if self._running is load:
                self._running = None
                self._failed = load.error
                if load.loaded is not None:
                    self._take(load.loaded)
        if load.loaded is None:
            raise KubeError(load.error)
        return load.loaded

    def _take(self, loaded: _Loaded) -> None:
        if self._complaint:
            self._complaint = ""
            _log.info("the kubeconfig can be loaded again")
        self.server = loaded.access.server
        self._access = loaded.access
        self._signatures = loaded.signatures
        self._until = self._renew_at = None
        if loaded.seconds is not None:
            self._until = self._clock.now() + loaded.seconds
            # Before they end, as a request takes its time and clocks differ.
            self._renew_at = self._until - min(120.0, 0.2 * max(0.0, loaded.seconds))


def from_kubeconfig(path: Path | None, context: str = "", *, clock: Clock = SYSTEM) -> Connection:
    """Return the connection of a context, the current one if none is named.

    Without a path, the files of the variable KUBECONFIG are merged, or ~/.kube/config is read, as kubectl does. A
    proxy-url always counts; the proxy variables of the environment count for servers elsewhere, unless NO_PROXY names
    them. Exec plugins run when credentials are needed, and have at most a minute at first. Raises KubeError.
    """
    if path is not None:
        paths: tuple[Path, ...] = (path,)
    elif variable := os.environ.get("KUBECONFIG", ""):
        paths = tuple(Path(part) for part in variable.split(os.pathsep) if part)
        paths = tuple(part for part in paths if part.exists()) or paths[:1]
    else:
        paths = (Path.home() / ".kube" / "config",)
    return Kubeconfig(tuple(part.expanduser().absolute() for part in paths), context, clock)


def connect(
    kubeconfig: Path | None, context: str = "", service_account: Path = SERVICE_ACCOUNT
) -> Connection:
    """Return the connection that a kubeconfig names, that of this pod without one. Raises KubeError."""
    return from_kubeconfig(kubeconfig, context) if kubeconfig else in_cluster(service_account)


def _choose(paths: tuple[Path, ...], name: str) -> _Chosen:
    """Return a context. Of several files, the first that says something counts, as in kubectl."""
    current, entries, homes = "", _Entries(), dict[str, Path]()
    for path in paths:
        config = _read(path)
        current = current or _string(config.get("current-context"), f"{path}: current-context")
        for kind in ("contexts", "clusters", "users"):
            for entry in _list(config.get(kind), f"{path}: {kind}"):
                if entries.add(kind, path, entry):
                    homes[f"{kind}/{entry['name']}"] = path
    name = name or current
    if not name:
        raise KubeError(
            f"kubeconfig {paths[0]}: no current-context, and no context is named in the configuration"
        )
    context = entries.find("contexts", name, paths[0])
    fields = _fields(context, "context", name)
    cluster = entries.find(
        "clusters", _string(fields.get("cluster"), f"context {shown(name)}: cluster"), paths[0]
    )
    wanted = _string(fields.get("user"), f"context {shown(name)}: user")
    user: dict[str, Any] = entries.find("users", wanted, paths[0]) if wanted else {"name": "", "user": {}}
    home = homes.get(f"users/{wanted}", paths[0]).parent
    named = [*_named(cluster, "clusters"), *_named(user, "users")]
    return _Chosen(context, cluster, user, str(home), (*paths, *named), _secrets(user["user"]))


class _Entries:
    def __init__(self) -> None:
        self._of: dict[str, dict[str, dict[str, Any]]] = {"contexts": {}, "clusters": {}, "users": {}}

    def add(self, kind: str, path: Path, entry: dict[str, Any]) -> bool:
        name = _string(entry.get("name"), f"{path}: {kind}: name")
        if not name or name in self._of[kind]:
            return False
        inner = _fields(entry, kind[:-1], name)
        absolute = {
            key: str(path.parent / inner[key])
            for key in _PATHS.get(kind, ())
            if isinstance(inner.get(key), str) and inner[key]
        }
        self._of[kind][name] = {"name": name, kind[:-1]: inner | absolute}
        return True

    def find(self, kind: str, name: str, path: Path) -> dict[str, Any]:
        try:
            return self._of[kind][name]
        except KeyError:
            have = ", ".join(shown(one) for one in list(self._of[kind])[:8]) or "none at all"
            raise KubeError(f"kubeconfig {path}: no {kind[:-1]} {shown(name)}; there is {have}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        documents = read_documents(path, _MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise KubeError(f"kubeconfig {path}: {one_line(reason)}") from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise KubeError(f"kubeconfig {path}: one object is expected in it")
    return documents[0]


def _list(value: Any, what: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise KubeError(f"kubeconfig {what}: a list of objects is expected")
    return value


def _fields(entry: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    value = entry.get(kind)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise KubeError(f"kubeconfig: {kind} {shown(name)}: an object is expected at {kind!r}")
    return value


def _string(value: Any, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise KubeError(f"kubeconfig {what}: text is expected")
    return value


def _named(entry: Mapping[str, Any], kind: str) -> list[Path]:
    return [Path(entry[kind[:-1]][key]) for key in _PATHS[kind] if entry[kind[:-1]].get(key)]


def _secrets(user: Mapping[str, Any]) -> tuple[str, ...]:
    """Return all texts of a user that may be secret, the longest first."""
    plugin = user.get("exec")
    given = [plugin.get("args"), plugin.get("env")] if isinstance(plugin, Mapping) else []
    others = [value for key, value in user.items() if key not in {*_PATHS["users"], "exec", "username"}]
    return tuple(sorted((text for text in _texts([*given, *others]) if len(text) > 3), key=len, reverse=True))


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for one in value.values():
                yield from _texts(one)
        case list():
            for one in value:
                yield from _texts(one)


def _load(chosen: _Chosen) -> _Loaded:
    """Let the loader of the package work, and take what it found."""
    from kubernetes.client import Configuration  # noqa: PLC0415 - it is large: see above
    from kubernetes.client.rest import should_bypass_proxies  # noqa: PLC0415
    from kubernetes.config import kube_config  # noqa: PLC0415

    # The files first: what changes while it is read is read again.
    signatures = {path: signature(path) for path in chosen.files}
    cluster = chosen.cluster["cluster"]
    skip = cluster.get("insecure-skip-tls-verify", False)
    if not isinstance(skip, bool):
        raise KubeError(f"kubeconfig: insecure-skip-tls-verify is {shown(skip)}: true or false is expected")
    config = {
        "current-context": chosen.context["name"],
        "contexts": [chosen.context],
        "clusters": [chosen.cluster],
        "users": [chosen.user],
    }
    configuration = Configuration()
    loader_type: Any = kube_config.KubeConfigLoader  # it has no types
    # The loader writes keys into files. Here they end with the load; its own would stay until a regular exit.
    with TemporaryDirectory(prefix="dradriver-") as scratch, _root_log() as said:
        try:
            loader = loader_type(
                config_dict=config, config_base_path=chosen.directory, temp_file_path=scratch
            )
            loader.load_and_set(configuration)
        except Exception as error:  # noqa: BLE001 - of what others wrote, anything
            raise KubeError(_safe(f"kubeconfig: {error}", chosen.secrets)) from None
        authorization = str(configuration.api_key.get("BearerToken", "")).strip()
        if chosen.user["user"] and not authorization and not configuration.cert_file:
            why = "; ".join(said) or "it has no credentials that are understood"
            what = "exec plugin" if "exec" in chosen.user["user"] else f"user {shown(chosen.user['name'])}"
            raise KubeError(_safe(f"kubeconfig: {what}: {why}", chosen.secrets))
        tls = _tls(configuration, verify=not skip)
    server = checked_server(str(configuration.host))
    proxy = str(configuration.proxy or "")
    if not cluster.get("proxy-url") and proxy:
        host = urlsplit(server).hostname or ""
        if _is_here(host) or should_bypass_proxies(server, configuration.no_proxy or ""):
            proxy = ""
    proxy, proxy_auth = _proxy(proxy)
    access = Access(
        server,
        checked_header(authorization, "the token or password of the kubeconfig") if authorization else "",
        tls if server.startswith("https:") else TLS(),
        proxy,
        proxy_auth,
    )
    expiry = getattr(loader, "expiry", None)
    seconds = (expiry - datetime.now(UTC)).total_seconds() if isinstance(expiry, datetime) else None
    return _Loaded(access, signatures, seconds)


def _tls(configuration: Any, *, verify: bool) -> TLS:
    ca, certificate, key = (
        read_file(Path(name)) if name else None
        for name in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    )
    if (certificate is None) != (key is None):
        raise KubeError("kubeconfig: a client certificate and its key come together, or neither does")
    if certificate == b"" or key == b"":
        raise KubeError("kubeconfig: the client certificate or its key is empty")
    return TLS(
        ca=certificates(ca, "kubeconfig: certificate-authority") if ca is not None and verify else "",
        certificate=certificate or b"",
        key=key or b"",
        verify=verify,
        server_name=str(configuration.tls_server_name or ""),
    )


def _proxy(url: str) -> tuple[str, str]:
    """Return a proxy's URL without its credentials, and those."""
    if not url:
        return "", ""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise KubeError("kubeconfig: proxy-url is no URL") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise KubeError(
            f"kubeconfig: proxy-url of scheme {shown(parts.scheme)}: http and https are supported"
        )
    place = f"[{host}]" if ":" in host else host
    auth = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return urlunsplit((parts.scheme, place if port is None else f"{place}:{port}", "", "", "")), auth


def _is_here(host: str) -> bool:
    """Return whether a host is this machine: as in Go, the proxies of the environment are not for it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_past(clock: Clock, time: float | None) -> bool:
    return time is not None and clock.now() >= time


def _safe(text: str, secrets: tuple[str, ...]) -> str:
    """Return a message of the package, which may quote the user's entry, without what is secret in it."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return one_line(text)


@contextmanager
def _root_log() -> Iterator[list[str]]:
    """Yield a list to which goes what this thread logs by the root logger: so the package tells of failed plugins."""
    said: list[str] = []
    thread = threading.get_ident()

    def divert(record: logging.LogRecord) -> bool:
        if record.thread != thread:
            return True
        said.append(record.getMessage())
        return False

    root = logging.getLogger()
    root.addFilter(divert)
    try:
        yield said
    finally:
        root.removeFilter(divert)
