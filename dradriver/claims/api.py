"""ResourceClaims as the API server has them now: one GET for each question, and no cache.

A cached claim can be older than the call that names it: between the scheduler's write and that lies a moment.
"""

from typing import Any

from dradriver.backend import TransientError
from dradriver.claims.decode import ClaimError
from dradriver.claims.source import ClaimNotFoundError
from dradriver.clock import SYSTEM, Clock
from dradriver.kube import Client, KubeError, MalformedError, StatusError, claim_path
from dradriver.model import ClaimRef

GET_SECONDS = 8.0
"""How long one GET may take: a connection that died unnoticed must not use up the whole call."""

_PASSING = frozenset({408, 425, 429})
"""Besides 5xx, the refusals that say nothing about the request."""


class ApiClaims:
    """Claims at the API server. Any thread may ask."""

    def __init__(self, client: Client, *, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._clock = clock

    def get(self, ref: ClaimRef, deadline: float) -> Any:
        """Return the claim of that namespace and name, as it is now.

        Raises ClaimNotFoundError; ClaimError where the server refuses, or what it has is not readable;
        TransientError where asking again may help.
        """
        try:
            return self._client.get(
                claim_path(ref.namespace, ref.name),
                deadline=min(deadline, self._clock.now() + GET_SECONDS),
                # A pod waits for it, and the kubelet limits how many do.
                urgent=True,
            )
        except StatusError as error:
            if error.code == 404:
                raise ClaimNotFoundError("the API server has no such claim (any more)") from None
            if error.code in _PASSING or error.code >= 500:
                raise TransientError(f"the claim cannot be read now: {error}") from None
            raise ClaimError(_refusal(error)) from None
        except MalformedError as error:
            raise ClaimError(f"the claim cannot be read: {error}") from None
        except KubeError as error:
            raise TransientError(f"the claim cannot be read now: {error}") from None


def _refusal(error: StatusError) -> str:
    match error.code:
        case 401:
            return f"the API server does not know dradriver: the credentials are wrong or outdated ({error})"
        case 403:
            return (
                "the API server does not let dradriver read claims: it needs the verb get on resourceclaims of "
                f"resource.k8s.io ({error})"
            )
    return f"the API server refuses to give out the claim ({error})"
