"""When the API server may be asked again after a failure."""

from collections import deque
from dataclasses import dataclass, field

from dradriver.backoff import delays
from dradriver.clock import Clock
from dradriver.kube import KubeError, StatusError, Successes, Waking, spread

FIRST_SECONDS = 0.2
CEILING_SECONDS = 4.0
"""An outage is noticed as over within this time, and less than the 5 s in which all must be right again."""

OUTAGE_SECONDS = 5.0
"""A server that answers again after this time may be another than before, and much may have happened there."""


@dataclass(slots=True)
class Reachable:
    """Whether the API server answers, as seen by all that ask it: what one finds out spares the others their wait.

    failures     how often it did not answer, or with an error of its own
    recoveries   how often it was found to answer again
    outages      how often after an outage
    successes    of all requests, also of those that others make of the same server
    """

    failures: int = 0
    recoveries: int = 0
    outages: int = 0
    successes: Successes = field(default_factory=Successes, repr=False, compare=False)


FIGHT_RESTORES = 64
FIGHT_SECONDS = 60.0
"""Who has to restore slices that often in that time has an opponent who does not give in."""

_SLOW_SECONDS = 2.0
_SLOWEST_SECONDS = 60.0


class Patience:
    """Keeps two that restore the same slices against each other from doing so without pause."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._restored: deque[float] = deque(maxlen=FIGHT_RESTORES)
        self._delays = delays(_SLOW_SECONDS, _SLOWEST_SECONDS)
        self._until = 0.0

    @property
    def exhausted(self) -> bool:
        """Whether it is too early to restore anything again."""
        return self._clock.now() < self._until

    def restored(self) -> None:
        """Note that slices had to be restored."""
        now = self._clock.now()
        if self._restored and now - self._restored[-1] > FIGHT_SECONDS:
            self._delays = delays(_SLOW_SECONDS, _SLOWEST_SECONDS)
        self._restored.append(now)
        if len(self._restored) == FIGHT_RESTORES and now - self._restored[0] < FIGHT_SECONDS:
            self._until = now + next(self._delays)


class Retry:
    """The back-off of one task."""

    def __init__(self, clock: Clock, reachable: Reachable) -> None:
        self._clock = clock
        self._reachable = reachable
        self._delays = delays(FIRST_SECONDS, CEILING_SECONDS)
        self._error: OSError | None = None
        self._until = 0.0
        self._since = 0.0
        self._recoveries: int | None = None
        self._asked_until = 0.0
        self._down = False
        self._successes = 0
        self._waking = Waking(clock)

    def check(self) -> None:
        """Raise the last failure again where it is too early for another try."""
        if self._error is None or self._clock.now() >= self._until:
            return
        if self._recoveries is not None and self._recoveries != self._reachable.recoveries:
            return
        if self._is_woken():
            self._waking.woken()
            self._delays = delays(FIRST_SECONDS, CEILING_SECONDS)
            self._until = self._clock.now()
            return
        raise self._error.with_traceback(None)

    def _is_woken(self) -> bool:
        """Whether a success of any request ends the wait, which it does once, and then rarely while all tries fail."""
        return (
            self._down
            and self._clock.now() >= self._asked_until
            and self._successes != self._reachable.successes.count
            and not self._waking.left
        )

    @property
    def failing(self) -> bool:
        """Whether the last try failed."""
        return self._error is not None

    def failed(self, error: OSError) -> None:
        """Begin or prolong the wait."""
        if self._error is None:
            self._since = self._clock.now()
        self._error = error
        cause = error if isinstance(error, KubeError) else error.__cause__
        asked = cause.retry_after if isinstance(cause, StatusError) else None
        wait = next(self._delays)
        self._asked_until = self._clock.now() + (0.0 if asked is None else spread(asked))
        self._until = max(self._clock.now() + wait, self._asked_until)
        down = not (isinstance(cause, StatusError) and cause.code < 500)
        self._reachable.failures += down
        self._down, self._successes = down, self._reachable.successes.count
        # Who was asked to wait, or was refused, is none the wiser for the server's answering others.
        self._recoveries = self._reachable.recoveries if down and asked is None else None

    def succeeded(self) -> None:
        """End the wait."""
        if self._error is not None:
            self._error = None
            self._waking.worked()
            self._delays = delays(FIRST_SECONDS, CEILING_SECONDS)
            self._reachable.recoveries += 1
            self._reachable.outages += self._clock.now() - self._since >= OUTAGE_SECONDS
