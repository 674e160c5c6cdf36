"""How the slices of one driver are reached: what its pools share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dradriver.clock import Clock
from dradriver.kube import SLICES, Client, StatusError, slice_path
from dradriver.publish.errors import explained, part
from dradriver.publish.learn import Learner
from dradriver.publish.owner import NodeOwner
from dradriver.publish.retry import Reachable
from dradriver.publish.stored import SliceCache, Stored


@dataclass(frozen=True, slots=True)
class Link:
    """What the pools of one driver share to reach the API server. Not thread-safe, but for the cache."""

    client: Client
    driver: str
    node: str
    cache: SliceCache
    learner: Learner
    owner: NodeOwner
    reachable: Reachable
    clock: Clock

    def refresh(self) -> None:
        """List the slices where it is not known which there are. Raises OSError."""
        if self.cache.unsure or not self.cache.listed:
            mark = self.cache.mark()
            self.cache.listed_since(mark, list_slices(self.client, selector(self.node, self.driver)))

    def delete(self, stored: Stored) -> None:
        """Delete a slice; one that is gone, or another of its name, is left alone. Raises OSError."""
        try:
            delete_slice(self.client, stored)
        except OSError:
            self.cache.doubt()
            raise
        self.cache.forget(stored)


def selector(node: str, driver: str) -> str:
    """Return the field selector of the slices of a driver on a node."""
    return f"spec.nodeName={node},spec.driver={driver}"


def list_slices(client: Client, fields: str) -> Sequence[Any]:
    """Return the slices that a field selector lets through, as they were sent. Raises OSError."""
    try:
        answer = client.list(SLICES, {"fieldSelector": fields})
    except StatusError as error:
        raise explained(error, "list", "resourceslices") from error
    return part(answer, "items") or ()


def delete_slice(client: Client, stored: Stored) -> None:
    """Delete a slice, if it is still that one. Raises OSError."""
    try:
        client.delete(slice_path(stored.name), body={"preconditions": {"uid": stored.uid}})
    except StatusError as error:
        if error.code not in {404, 409}:
            raise explained(error, "delete", "resourceslices") from error
