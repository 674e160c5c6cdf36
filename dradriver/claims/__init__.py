"""Claims: from an API object to what each backend is asked for."""

from dradriver.claims.decode import Claim, ClaimError, OpaqueConfig, claim_ref, layered, read_claim, typed
from dradriver.claims.directory import DirectoryClaims
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
    "read_claim",
    "typed",
]
