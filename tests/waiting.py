"""Waiting for what other threads and processes bring about."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 30.0
"""Seconds to wait for what must happen at all, on a slow machine too; how soon it should is measured elsewhere."""


def eventually(condition: Callable[[], Any], what: str = "", seconds: float = PATIENCE) -> Any:
    """Return the first true value of `condition`; fail, naming `what`, if it has none within so many seconds."""
    began = time.monotonic()
    end = began + seconds
    while not (found := condition()):
        now = time.monotonic()
        assert now < end, f"did not happen within {seconds:g} s: {what}"
        # What is waited for needs the CPU that a look costs.
        time.sleep(min(max(0.01, now - began), 0.1))
        began = time.monotonic()
    return found
