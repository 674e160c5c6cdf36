"""What a publisher is to the daemon, wherever it publishes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from dradriver.model import PoolContent
from dradriver.slices import LeftOut


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What one call changed, and what is not published.

    written      names of slices that were created or changed; nothing where all was as it should be
    removed      names of slices that were removed
    left_out     devices and counter sets that are not published, with the reasons
    reductions   what the reader of the slices cannot store, and what is published instead, one line each
    warnings     what else was dropped, one line each
    outdated     of `verify` only: (driver, pool) of pools to be published again, since what can be published, or what
                 there is to say of it, is not what it was at their last publish
    offered      of `publish` only: how many devices are in the slices
    """

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    reductions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    outdated: tuple[tuple[str, str], ...] = ()
    offered: int = field(default=0, compare=False)


class Publisher(Protocol):
    """Keeps the slices of this node's pools where others read them. Safe to call from several threads.

    A failed call raises OSError; what it had done stays, and the next call goes on from there.
    """

    def publish(self, driver: str, node: str, pool: str, content: PoolContent) -> PublishResult:
        """Make the slices of a pool say `content`, and remember it. Nothing is written where they do already.

        Raises ValueError where a name is none that the API server accepts.
        """
        ...

    def verify(self) -> PublishResult:
        """Restore what others removed or edited since. Cheap while nothing did: for calling every second.

        A pool whose last publish failed may be left to the next: it is to be published again.
        """
        ...

    def withdraw_others(self, keep: Iterable[tuple[str, str]]) -> PublishResult:
        """Remove what an earlier configuration published: all slices of ours but those of (driver, pool) in `keep`."""
        ...

    def withdraw(self, driver: str, node: str, pool: str) -> PublishResult:
        """Remove all slices of a pool, and forget it."""
        ...
