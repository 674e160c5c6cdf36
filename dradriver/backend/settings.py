"""What was set on hardware for claims, and how it was before.

Several claims can want the same of one thing at once: the first one changes it, the last one that leaves puts it back.
Who holds what is kept in a file for each setting, since a claim that is undone cannot see the others; it is written
before anything is changed. The files belong below /run: settings do not outlive a reboot either.
"""

import contextlib
import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dradriver.backend.errors import BackendError
from dradriver.host import Host
from dradriver.model import shown


@dataclass(slots=True)
class _State:
    """How a setting was before the first claim; who holds it, and how."""

    before: Any
    holders: dict[str, Any] = field(default_factory=dict)


def holder(claim: str, index: int) -> str:
    """Return the name under which device `index` of a claim, by its UID, holds settings."""
    return f"{claim}/{index}"


class Settings:
    """The settings of all hardware of a backend. Safe from all threads; values are plain JSON types."""

    def __init__(self, host: Host, directory: str) -> None:
        """Touch nothing yet. `directory` is below the host root."""
        self._host = host
        self._directory = f"{directory.rstrip('/')}/settings"
        self._guard = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def take(
        self, setting: str, holder: str, value: Any, *, read: Callable[[], Any], change: Callable[[Any], None]
    ) -> Any:
        """Have a setting at a value for a holder; return how it was before anybody had it.

        setting   a thing's name and what is set of it; part of a file's name
        read      how it is now, asked where nobody has it
        change    sets it; called each time, so that what was cut off is done again

        Raises BackendError where others hold it at another value, and what `read` and `change` raise.
        """
        with self._locked(setting):
            state = self._load(setting)
            for other, theirs in state.holders.items() if state else ():
                if other != holder and theirs != value:
                    raise BackendError(
                        f"{setting} is {shown(theirs)} for claim {other.partition('/')[0]}, {shown(value)} is asked"
                    )
            if state is None:
                state = _State(read())
            if state.holders.get(holder) != value:
                state.holders[holder] = value
                self._save(setting, state)
            change(value)
            return state.before

    def leave(self, setting: str, holder: str, restore: Callable[[Any], bool]) -> bool:
        """Let a holder go; the last one puts it back as it was. Return False where nothing is known of the setting.

        restore   returns whether it could be put back now; where not, the next last one tries it again
        """
        with self._locked(setting):
            state = self._load(setting)
            if state is None:
                return False
            others = {name: value for name, value in state.holders.items() if name != holder}
            if others and others == state.holders:
                return True  # who never came to hold it leaves without a write: the disk may be full
            if others or not restore(state.before):
                self._save(setting, _State(state.before, others))
            else:
                self._forget(setting)
            return True

    def holds(self, setting: str, holder: str) -> bool:
        """Return whether somebody holds a setting."""
        with self._locked(setting):
            state = self._load(setting)
            return state is not None and holder in state.holders

    @contextlib.contextmanager
    def _locked(self, setting: str) -> Iterator[None]:
        with self._guard:
            lock = self._locks[setting]
        with lock:
            yield

    def _path(self, setting: str) -> Path:
        return self._host.path(f"{self._directory}/{setting}.json")

    def _load(self, setting: str) -> _State | None:
        path = self._path(setting)
        try:
            body = json.loads(path.read_bytes())
            return _State(body["before"], dict(body["holders"]))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BackendError(f"{path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise BackendError(
                f"{path} is no record of a setting: remove it, and set the hardware by hand"
            ) from None

    def _forget(self, setting: str) -> None:
        path = self._path(setting)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise BackendError(f"{path}: {error.strerror} (option runDirectory)") from None

    def _save(self, setting: str, state: _State) -> None:
        path = self._path(setting)
        new = path.with_suffix(".new")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_text(json.dumps({"before": state.before, "holders": state.holders}))
            os.replace(new, path)  # noqa: PTH105 - a Path's method hides that it is atomic
        except OSError as error:
            raise BackendError(f"{path}: {error.strerror} (option runDirectory)") from None
