"""Finding the claim that a command names."""

from pathlib import Path
from typing import Any, NoReturn

from dradriver.claims import DirectoryClaims
from dradriver.claims.directory import MAX_FILE
from dradriver.cli.context import Misuse, Node, fail
from dradriver.documents import read_documents
from dradriver.model.names import check_label, check_subdomain


def find_claim(node: Node, text: str) -> Any:
    """Return the claim object of a file, or of `[namespace/]name` at the API server or in the claims directory."""
    path = Path(text)
    try:
        if path.exists() and not path.is_dir():
            found = read_documents(path, MAX_FILE)
            if len(found) != 1:
                fail(f"{text}: one ResourceClaim is expected, found {len(found)} objects")
            return found[0]
    except OSError as error:
        fail(f"{text}: cannot be read: {error.strerror}")
    except ValueError as error:
        fail(f"{text}: {error}")
    namespace, _, name = text.rpartition("/")
    namespace = namespace or "default"
    if node.settings.kubernetes:
        return _at_the_server(node, namespace, name)
    claims = DirectoryClaims(node.settings.claims).all()
    obj = next((obj for ref, obj in claims if (ref.namespace, ref.name) == (namespace, name)), None)
    if obj is None:
        fail(f"{text}: no such file, and no such claim in {node.settings.claims}")
    return obj


def fail_claim(text: str, obj: Any, error: Exception) -> NoReturn:
    """End the command for what is wrong with the claim `obj` that was named by `text`."""
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    hint = ""
    if isinstance(metadata, dict) and not metadata.get("uid"):
        hint = "; the API server gives a claim its uid: take the claim from there (kubectl get resourceclaim -o yaml)"
    fail(f"claim {text}: {error}{hint}")


def _at_the_server(node: Node, namespace: str, name: str) -> Any:
    from dradriver.kube import Client, KubeError, claim_path, connect

    try:
        check_label(namespace, "namespace")
        check_subdomain(name, "claim name")
    except ValueError as error:
        raise Misuse(str(error)) from None
    try:
        settings = node.settings
        client = Client(connect(settings.kubeconfig, settings.context, settings.service_account))
        try:
            return client.get(claim_path(namespace, name))
        finally:
            client.close()
    except KubeError as error:
        fail(f"{namespace}/{name}: no such file; at the API server: {error}")
