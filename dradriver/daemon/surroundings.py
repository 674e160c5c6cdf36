"""Where claims come from and slices go to: the API server, or files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dradriver.claims import ClaimSource, DirectoryClaims
from dradriver.claims.api import ApiClaims
from dradriver.claimstatus import ClaimStatusWriter
from dradriver.config import Kubernetes, Settings, SettingsError
from dradriver.daemon.binding import BindingWatch
from dradriver.engine import Journal, Pools, Record
from dradriver.kube import Client, EventRecorder, KubeError, Observed, connect
from dradriver.publish import ApiPublisher, FilePublisher, Loop, Publisher


class Surroundings(Protocol):
    """What the daemon has around it.

    server      URL of the API server; empty where there is none
    reachable   whether the API server answers and can be watched; None where there is none
    binds       whether claims are told of binding conditions
    publisher   where the slices go
    claims      where the claims come from
    """

    @property
    def server(self) -> str: ...

    @property
    def reachable(self) -> bool | None: ...

    @property
    def binds(self) -> bool: ...

    @property
    def publisher(self) -> Publisher: ...

    @property
    def claims(self) -> ClaimSource: ...

    def loops(self, journal: Journal) -> Sequence[Loop]:
        """Return the loops of the active instance."""

    def told(self, reason: str, message: str) -> None:
        """Let an administrator know."""

    def prepared(self, record: Record, claim: object) -> None:
        """Take note of a prepared claim, and of its object as it was read. Quick."""

    def seen(self) -> None:
        """Take note that hardware was looked at. Quick."""

    def troubles(self) -> Sequence[str]:
        """Return what does not work now beside the publishing itself; quick."""

    def close(self) -> None:
        """Let go of connections: what waits for an answer ends."""


@dataclass(frozen=True)
class Files:
    """Claims and slices are files."""

    publisher: FilePublisher
    claims: DirectoryClaims
    server: str = ""
    reachable: bool | None = None
    binds: bool = False

    def loops(self, journal: Journal) -> Sequence[Loop]:
        """Return nothing: the publisher looks at its files when it is asked."""
        del journal
        return ()

    def told(self, reason: str, message: str) -> None:
        """Leave it at the log."""

    def prepared(self, record: Record, claim: object) -> None:
        """Write no status: the claims are somebody else's files."""

    def seen(self) -> None:
        """Leave it at the slices."""

    def troubles(self) -> Sequence[str]:
        """Return nothing: all there is is the publishing."""
        return ()

    def close(self) -> None:
        """Have nothing to let go of."""


@dataclass
class Cluster:
    """Claims and slices are at the API server."""

    client: Client
    publisher: ApiPublisher
    claims: ApiClaims
    events: EventRecorder
    pools: Pools
    config: Kubernetes
    status: ClaimStatusWriter | None = field(default=None, init=False)
    binding: BindingWatch | None = field(default=None, init=False)

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self.client.server

    @property
    def reachable(self) -> bool:
        """Whether the API server answers and can be watched."""
        return not self.publisher.trouble

    @property
    def binds(self) -> bool:
        """Whether claims are told of binding conditions."""
        return self.config.binding_conditions

    def loops(self, journal: Journal) -> Sequence[Loop]:
        """Return the watches, and the writers of Events, of claims' status and of binding conditions."""
        loops: list[Loop] = [*self.publisher.loops(), ("events", self.events.run)]
        if self.config.claim_status:
            self.status = ClaimStatusWriter(self.client, journal, self.pools.drivers)
            loops.append(("claim status", self.status.run))
        if self.config.binding_conditions:
            self.binding = BindingWatch(self.client, self.pools.all)
            loops += self.binding.loops()
        return loops

    def told(self, reason: str, message: str) -> None:
        """Write an Event of the Node."""
        self.events.record(reason, message, warning=True)

    def prepared(self, record: Record, claim: object) -> None:
        """Have the claim's status written."""
        if self.status:
            self.status.prepared(record, claim)

    def seen(self) -> None:
        """Have claims told that wait for a device which is ready now."""
        if self.binding:
            self.binding.seen()

    def troubles(self) -> Sequence[str]:
        """Return why slices or claims cannot be watched, or claims not be told."""
        found = [self.publisher.trouble]
        found += [self.status.trouble] if self.status else []
        found += [self.binding.trouble] if self.binding else []
        return found

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


def surroundings(
    settings: Settings, pools: Pools, changed: Callable[[], None], observed: Observed
) -> Surroundings:
    """Return what the settings name; no request is made yet.

    changed    called when slices were changed by others
    observed   told of each request to the API server

    Raises SettingsError where there are no credentials.
    """
    kubernetes = settings.kubernetes
    if kubernetes is None:
        return Files(FilePublisher(settings.slices), DirectoryClaims(settings.claims))
    try:
        connection = connect(settings.kubeconfig, settings.context, settings.service_account)
    except KubeError as error:
        raise SettingsError(f"{settings.source}: kubernetes: {error}") from None
    client = Client(connection, qps=kubernetes.qps, burst=kubernetes.burst, observed=observed)
    return Cluster(
        client,
        ApiPublisher(client, settings.node, pools.drivers, changed=changed),
        ApiClaims(client),
        EventRecorder(client, settings.node),
        pools,
        kubernetes,
    )
