"""Errors as the API server words them, and the Status objects that carry them. Pure.

Facts: k8s.io/apimachinery/pkg/api/errors (texts, codes, reasons) and metav1.Status.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from dradriver.sim.apiserver.kinds import Kind

REASONS: Final[Mapping[int, str]] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
"""The reason that goes with a code unless another is named."""

_MODIFIED: Final = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


class FieldError(NamedTuple):
    """What is wrong with one field: its path, the reason of metav1.StatusCause, and the text after the path."""

    field: str
    reason: str
    message: str


class ApiError(Exception):
    """A request without success. `details` are those of metav1.Status; `retry_after` is in seconds."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = REASONS.get(code, "") if reason is None else reason
        self.details = dict(details or {})
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after
        if retry_after is not None:
            self.details["retryAfterSeconds"] = retry_after

    def status(self) -> dict[str, Any]:
        """Return the Status object."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details:
            status["details"] = self.details
        status["code"] = self.code
        return status

    @classmethod
    def not_found(cls, kind: Kind, name: str) -> Self:
        """No object of that name."""
        return cls(404, f'{kind.qualified} "{name}" not found', details=_details(kind, name))

    @classmethod
    def already_exists(cls, kind: Kind, name: str) -> Self:
        """An object of that name is there."""
        return cls(
            409,
            f'{kind.qualified} "{name}" already exists',
            reason="AlreadyExists",
            details=_details(kind, name),
        )

    @classmethod
    def conflict(cls, kind: Kind, name: str, why: str = _MODIFIED) -> Self:
        """Another object, or another version of it, was meant."""
        return cls(
            409,
            f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}',
            details=_details(kind, name),
        )

    @classmethod
    def invalid(cls, kind: Kind, name: str, errors: Sequence[FieldError]) -> Self:
        """Fields that break the rules of their kind."""
        texts = [f"{error.field}: {error.message}" for error in errors]
        listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        causes = [
            {"reason": error.reason, "message": error.message, "field": error.field} for error in errors
        ]
        suffix = f".{kind.group}" if kind.group else ""
        return cls(
            422,
            f'{kind.name}{suffix} "{name}" is invalid: {listed}',
            details={"name": name, "group": kind.group, "kind": kind.name, "causes": causes},
        )

    @classmethod
    def expired(cls, message: str, metadata: Mapping[str, Any] | None = None) -> Self:
        """A version that is not remembered any more."""
        return cls(410, message, reason="Expired", metadata=metadata)

    @classmethod
    def no_such_path(cls) -> Self:
        """Nothing is served there."""
        return cls(404, "the server could not find the requested resource")

    @classmethod
    def unsupported_method(cls) -> Self:
        """Something is served there, but not this."""
        return cls(405, "the server does not allow this method on the requested resource")


def _details(kind: Kind, name: str) -> dict[str, Any]:
    details = {"name": name, "group": kind.group, "kind": kind.plural}
    return {key: value for key, value in details.items() if value}
