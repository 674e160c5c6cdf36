"""The Node object that owns the slices."""

from dradriver.kube import Client, StatusError, node_path
from dradriver.model import shown
from dradriver.publish.errors import PublishError, explained, part
from dradriver.publish.reconcile import Owner

NO_NODE = "there is no Node"
"""How it is said that the node has no object at the API server."""


class NodeOwner:
    """Reads the Node object, and remembers it until there is reason to read it again. Not thread-safe."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self._node = node
        self._owner: Owner | None = None

    def get(self) -> Owner:
        """Return the owner. Raises PublishError where the node is not there or may not be read, KubeError."""
        if self._owner is None:
            try:
                node = self._client.get(node_path(self._node))
            except StatusError as error:
                if error.code == 404:
                    raise PublishError(
                        f"{NO_NODE} {shown(self._node)}: slices are published once it is there"
                    ) from error
                raise explained(error, "get", "nodes", "") from error
            self._owner = Owner(self._node, part(node, "metadata", "uid"))
        return self._owner

    def renew(self) -> None:
        """Read the node again before it is next named: it may have been deleted and made anew with another UID."""
        self._owner = None
