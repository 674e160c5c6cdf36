"""Making HTTP answers of objects and errors."""

from collections.abc import Iterable
from typing import Any

from dradriver.sim.apiserver.errors import ApiError
from dradriver.sim.apiserver.http import Response
from dradriver.sim.apiserver.store import encode

_WARNING_LENGTH = 1024


def json_response(value: Any) -> Response:
    """Return an answer with a JSON body."""
    return Response(200, encode(value))


def text_response(text: str) -> Response:
    """Return an answer in plain text."""
    return Response(200, text.encode(), "text/plain; charset=utf-8")


def error_response(error: ApiError) -> Response:
    """Return an error's Status object with its headers."""
    headers = [("Retry-After", str(error.retry_after))] if error.retry_after is not None else []
    return Response(error.code, encode(error.status()), headers=headers)


def warning_headers(warnings: Iterable[str]) -> list[tuple[str, str]]:
    """Return a Warning header (RFC 7234, code 299) for each text."""
    return [("Warning", f'299 - "{_quotable(text)}"') for text in warnings]


def _quotable(text: str) -> str:
    shown = "".join(character if character.isprintable() else " " for character in text)[:_WARNING_LENGTH]
    return shown.replace("\\", "\\\\").replace('"', '\\"')
