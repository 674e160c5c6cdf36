"""Finding the claim that a command names."""

from pathlib import Path
from typing import Any

from dradriver.claims import DirectoryClaims, load_documents
from dradriver.cli.context import Node, fail


def find_claim(node: Node, text: str) -> Any:
    """Return the claim object of a file, or of `[namespace/]name` in the claims directory."""
    path = Path(text)
    try:
        if path.is_file():
            found = load_documents(path.read_text())
            if len(found) != 1:
                fail(f"{text}: one ResourceClaim is expected, found {len(found)} objects")
            return found[0]
    except (OSError, ValueError) as error:
        fail(f"{text}: {error}")
    namespace, _, name = text.rpartition("/")
    wanted = (namespace or "default", name)
    claims = DirectoryClaims(node.settings.claims).all()
    obj = next((obj for ref, obj in claims if (ref.namespace, ref.name) == wanted), None)
    if obj is None:
        fail(f"{text}: no such file, and no such claim in {node.settings.claims}")
    return obj
