"""Finding the claim that a command names."""

from pathlib import Path
from typing import Any

from dradriver.claims import DirectoryClaims
from dradriver.claims.directory import MAX_FILE
from dradriver.cli.context import Node, fail
from dradriver.documents import read_documents


def find_claim(node: Node, text: str) -> Any:
    """Return the claim object of a file, or of `[namespace/]name` in the claims directory."""
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
    wanted = (namespace or "default", name)
    claims = DirectoryClaims(node.settings.claims).all()
    obj = next((obj for ref, obj in claims if (ref.namespace, ref.name) == wanted), None)
    if obj is None:
        fail(f"{text}: no such file, and no such claim in {node.settings.claims}")
    return obj
