"""How long to wait before something is tried again."""

import random
from collections.abc import Iterator


def delays(first: float = 0.05, ceiling: float = 5.0) -> Iterator[float]:
    """Yield waiting times in seconds: doubling up to the ceiling, each with jitter of up to half of it."""
    delay = first
    while True:
        yield delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreading, not secrecy
        delay = min(delay * 2, ceiling)
