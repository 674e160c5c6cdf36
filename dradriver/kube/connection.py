"""Where the API server is, and by what it knows us; in a pod, and in general."""

import ipaddress
import logging
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from dradriver.clock import SYSTEM, Clock
from dradriver.documents import read_plain
from dradriver.kube.errors import KubeError
from dradriver.kube.limits import Limits
from dradriver.model.text import shown

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet keeps a pod's token and the CA."""

REREAD_SECONDS = 10.0
"""The files of a pod are read again that often, whatever their times of change say."""

_MAX_FILE_BYTES = 1 << 20
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[\x20-\x7e\r\n]+?-----END CERTIFICATE-----")
_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]+(?: [\x21-\x7e]+)*")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TLS:
    """How a TLS connection is made. Equal ones can share a pool.

    ca           certificates to trust, PEM; empty for those of the system
    certificate  our own, PEM, with the chain; empty for none
    key          its key, PEM
    verify       whether the server must prove who it is
    server_name  the name to expect in its certificate, empty for the host's
    """

    ca: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    verify: bool = True
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """What one request needs. Equal where nothing has changed.

    server         URL, which may have a path, without a slash at the end
    authorization  value of that header, empty for none
    proxy          URL, without credentials, empty for none
    proxy_auth     "user:password" for the proxy
    """

    server: str
    authorization: str = field(default="", repr=False)
    tls: TLS = TLS()
    proxy: str = ""
    proxy_auth: str = field(default="", repr=False)


class Connection:
    """Where the API server is and by what it knows us: here, something that never changes.

    The kinds that change answer `access` and `renewed` anew. Both may be called from several threads.
    """

    def __init__(self, server: str, *, token: str = "", tls: TLS = TLS()) -> None:
        """Raise KubeError where the URL or the token is none."""
        self.server = checked_server(server)
        self._access = Access(self.server, bearer(token) if token else "", tls)

    def access(self, limits: Limits) -> Access:
        """Return what a request goes by now. Raises KubeError."""
        del limits
        return self._access

    def renewed(self, used: Access, limits: Limits) -> Access:
        """Return what to go by after the server did not accept `used`: the same where there is nothing else.

        Raises KubeError.
        """
        del used
        return self.access(limits)


class InCluster(Connection):
    """The credentials of a pod. The kubelet replaces its token before it ends, and the CA when that is rotated."""

    def __init__(self, server: str, directory: Path, clock: Clock) -> None:
        super().__init__(server)
        self._directory = directory
        self._clock = clock
        self._guard = threading.Lock()
        self._complaint = ""
        self._signature = _signatures(self._files)
        self._access = self._read()
        self._read_at = clock.now()

    def access(self, limits: Limits) -> Access:
        """Return what the files say, read anew where they changed or were last read a while ago."""
        del limits
        with self._guard:
            signature = _signatures(self._files)
            if signature != self._signature or self._clock.now() - self._read_at >= REREAD_SECONDS:
                self._update(signature)
            return self._access

    def renewed(self, used: Access, limits: Limits) -> Access:
        """Return what the files say now."""
        del used, limits
        with self._guard:
            self._update(_signatures(self._files))
            return self._access

    @property
    def _files(self) -> tuple[Path, ...]:
        return self._directory / "token", self._directory / "ca.crt"

    def _update(self, signature: tuple[object, ...]) -> None:
        """Read; what was read last stays where that fails, as it may serve for a while yet."""
        self._read_at = self._clock.now()
        try:
            access = self._read()
        except KubeError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.warning("the last credentials are used as long as they serve: %s", error)
            return
        if self._complaint:
            self._complaint = ""
            _log.info("the credentials in %s can be read again", self._directory)
        self._signature = signature
        if access != self._access:
            _log.debug("the credentials in %s have changed", self._directory)
            self._access = access

    def _read(self) -> Access:
        token, ca = self._files
        return Access(
            self.server,
            bearer(_text_of(token), f"the token in {token}"),
            TLS(ca=certificates(read_file(ca), str(ca))),
        )


def in_cluster(
    directory: Path = SERVICE_ACCOUNT,
    environment: Mapping[str, str] = MappingProxyType(os.environ),
    *,
    clock: Clock = SYSTEM,
) -> Connection:
    """Return the connection of a pod, by the variables and files that the kubelet gives every one.

    Proxies of the environment are not used: the server's address is one of the cluster. Raises KubeError where this
    is no pod, or a file is missing or not what it should be.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise KubeError(
            "not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not both set; "
            "outside of one a kubeconfig is needed"
        )
    if not _HOST.fullmatch(host):
        raise KubeError(f"KUBERNETES_SERVICE_HOST is {shown(host)}: a name or an address is expected")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise KubeError(f"KUBERNETES_SERVICE_PORT is {shown(port)}: a number from 1 to 65535 is expected")
    return InCluster(f"https://{f'[{host}]' if _is_ipv6(host) else host}:{port}", directory, clock)


def checked_server(url: str) -> str:
    """Return a server's URL without the slash at its end. Raises KubeError where it is none."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError as error:
        raise KubeError(f"server {shown(url, 200)}: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise KubeError("server: credentials in the URL are not used; only scheme, host, port and path are")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise KubeError(
            f"server {shown(url, 200)}: http:// or https://, a host and perhaps a path are expected"
        )
    if not url.isascii() or not url.isprintable() or " " in url:
        raise KubeError(f"server {shown(url, 200)}: characters that no URL has")
    return url.rstrip("/")


def bearer(token: str, what: str = "the token") -> str:
    """Return the header value for a token. Raises KubeError, without the token, where it cannot stand in a header."""
    return checked_header(f"Bearer {token.strip()}".strip(), what)


def checked_header(value: str, what: str) -> str:
    """Return a header value as it is. Raises KubeError, which does not show it: it is a secret."""
    if not _HEADER_VALUE.fullmatch(value) or value == "Bearer":
        raise KubeError(f"{what} is empty, or has characters that cannot stand in a header")
    return value


def certificates(data: bytes, what: str) -> str:
    """Return the PEM certificates in `data`, without what else stands there. Raises KubeError where there are none."""
    found = _CERTIFICATE.findall(data)
    if not found:
        raise KubeError(f"{what}: there is no PEM certificate in it")
    return "\n".join(one.decode("ascii") for one in found) + "\n"


def read_file(path: Path) -> bytes:
    """Return what a file holds. Raises KubeError."""
    try:
        return read_plain(path, _MAX_FILE_BYTES)[0]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise KubeError(f"cannot read {path}: {reason}") from None


def _text_of(path: Path) -> str:
    try:
        return read_file(path).decode("ascii").strip()
    except UnicodeDecodeError:
        raise KubeError(f"{path}: only ASCII text is expected in it") from None


def _signatures(paths: tuple[Path, ...]) -> tuple[object, ...]:
    return tuple(signature(path) for path in paths)


def signature(path: Path) -> object:
    """Return something that is another once the file was replaced or written, None while it cannot be seen."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
