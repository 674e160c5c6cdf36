"""Saying once what is wrong, and once that it is over, however often something is tried in between."""

import logging

_MAX_TEXTS = 4


class Complaint:
    """One thing that may be wrong. Not thread-safe, but for reading `text`.

    The reason may be another at each try, as while an API server goes down and comes up: each is said once until the
    trouble is over, and of many only the first few.

    text   the latest reason; empty while nothing is wrong
    """

    def __init__(self, log: logging.Logger, wrong: str, right: str, level: int = logging.ERROR) -> None:
        """`wrong` is a sentence that names what is wrong, which the reason follows; `right` says that it is over."""
        self.text = ""
        self._log = log
        self._wrong = wrong
        self._right = right
        self._level = level
        self._said: list[str] = []

    def say(self, text: str) -> None:
        """Note that it is wrong, and why."""
        self.text = text or "for no known reason"
        if self.text not in self._said and len(self._said) < _MAX_TEXTS:
            self._said.append(self.text)
            self._log.log(self._level, "%s, and it is tried again: %s", self._wrong, self.text)

    def end(self) -> None:
        """Note that it is right, now or again."""
        if self.text:
            self.text = ""
            self._said.clear()
            self._log.info("%s", self._right)
