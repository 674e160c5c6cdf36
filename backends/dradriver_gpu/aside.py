"""Work that may hang in the driver, in a thread of its own."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Aside(Generic[T]):
    """Work that was begun. It cannot be ended: who does not wait for it any more leaves it to itself.

    done   set once it has ended
    """

    def __init__(self, name: str, work: Callable[[], T], ended: Callable[[], None] = lambda: None) -> None:
        """Begin it, in a thread of that name; `ended` is called there behind it."""
        self.done = threading.Event()
        self._work = work
        self._ended = ended
        self._found: T | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._go, name=name, daemon=True).start()

    def _go(self) -> None:
        try:
            self._found = self._work()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
        self.done.set()
        self._ended()

    def result(self) -> T:
        """Return what the work returned, or raise what it raised, once it is done."""
        assert self.done.is_set()  # noqa: S101 - who asks has waited
        if self._error is not None:
            raise self._error
        return cast("T", self._found)


class Bounded(Aside[T]):
    """Work that is waited for as long as it may take, and no longer."""

    def __init__(self, name: str, work: Callable[[], T], late: Callable[[], None]) -> None:
        """Begin it; `late` is called behind it where it was not waited for any more."""
        self._guard = threading.Lock()
        self._left = False
        self._late = late
        super().__init__(name, work, self._settle)

    def ends_within(self, seconds: float) -> bool:
        """Wait for it; return whether it has ended. Where it has not, it is left to itself."""
        if self.done.wait(seconds):
            return True
        with self._guard:
            self._left = not self.done.is_set()
            return not self._left

    def _settle(self) -> None:
        with self._guard:
            left = self._left
        if left:
            self._late()
