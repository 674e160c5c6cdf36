"""Logging of the daemon: one line an event, as text or JSON, on standard error."""

import json
import logging
import sys
import time
from typing import Any, Final

from dradriver.config import Log

LIBRARIES: Final = ("celpy", "kubernetes", "oauthlib", "requests_oauthlib")
"""What these say below a warning is not wanted at any level: tokens, and each step of each CEL expression."""


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self.converter = time.gmtime


class _JSON(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class _NoGarbage(logging.Filter):
    """Leaves out the traceback that gRPC logs for each request that is no message: any client can send thousands."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Exception deserializing")


def set_up(config: Log) -> None:
    """Log to standard error as configured."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_NoGarbage())
    handler.setFormatter(_JSON() if config.format == "json" else _Text())
    for library in LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)
    # It warns of each bad answer; who made the request says so once.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
