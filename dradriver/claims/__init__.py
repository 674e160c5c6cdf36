"""Claims: from an API object to what each backend is asked for.

`dradriver.claims.api` reads them at the API server; it is not imported here, since its client costs memory.
"""

from dradriver.claims.decode import Claim, ClaimError, OpaqueConfig, claim_ref, layered, read_claim, typed
from dradriver.claims.directory import DirectoryClaims
from dradriver.claims.network import network_body
from dradriver.claims.source import ClaimNotFoundError, ClaimSource

__all__ = [
    "Claim",
    "ClaimError",
    "ClaimNotFoundError",
    "ClaimSource",
    "DirectoryClaims",
    "OpaqueConfig",
    "claim_ref",
    "layered",
    "network_body",
    "read_claim",
    "typed",
]
