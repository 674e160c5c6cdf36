"""What the daemon's log holds at its most talkative."""

import logging
import sys
from collections.abc import Iterator
from io import StringIO

import pytest

from dradriver.backend.select import Filter
from dradriver.config import Log
from dradriver.daemon.logs import LIBRARIES, set_up


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    """Yield what is logged at level debug; afterwards logging is as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in (*LIBRARIES, "urllib3")}
    stream = StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    set_up(Log(level="debug"))
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def test_debugging_shows_no_steps_of_cel_expressions(log: StringIO) -> None:
    logging.getLogger("dradriver.somewhere").debug("a step of ours")
    Filter('device.attributes["gpu.dradriver.io"].type == "gpu"', "gpu.dradriver.io")

    assert [line.partition(" ")[2] for line in log.getvalue().splitlines()] == [
        "DEBUG   dradriver.somewhere: a step of ours"
    ]


def test_debugging_shows_no_tokens(log: StringIO) -> None:
    logging.getLogger("requests_oauthlib.oauth2_session").debug("Response content was %s", "secret")

    assert "secret" not in log.getvalue()
