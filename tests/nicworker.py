"""The process of the crash tests of network cards: runs the steps of a claim, and kills itself at a given point.

Points are before and after each request to the kernel that changes something, each fact that is recorded, and each
change of a file of settings. Cases come and are answered as in `crashworker`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from crashworker import Points, serve
from dradriver.backend import HostStep, Work
from dradriver.engine.records import StepRecord, restore_step
from dradriver.host import Host
from dradriver_nic import NicBackend
from dradriver_nic.actuate.rtnl import Rtnl
from nicnode import options_of


class Facts:
    """What the steps of a claim record, by number, in a file that is replaced as a whole."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.all: list[dict[str, Any]] = json.loads(file.read_text())

    def add(self, number: int, facts: Mapping[str, Any]) -> None:
        """Record more facts of a step."""
        self.all[number].update(json.loads(json.dumps(dict(facts))))
        self._file.with_suffix(".new").write_text(json.dumps(self.all))
        self._file.with_suffix(".new").rename(self._file)


def work(case: dict[str, Any]) -> list[str]:
    """Run the steps of a case, in its order; return the points that were passed."""
    points = Points(case.get("fatal", 0))
    points.around(Rtnl, "change", "request")
    points.around(os, "replace", "settings")
    points.around(Path, "unlink", "settings")
    backend = NicBackend(Host(Path("/")), options_of(case["options"]))
    facts = Facts(Path(case["facts"]))
    for verb, number, record in case["steps"]:

        def keep(more: Mapping[str, Any], n: int = number) -> None:
            points.reach("before record")
            facts.add(n, more)
            points.reach("after record")

        step = restore_step(backend, msgspec.convert(record, StepRecord))
        assert isinstance(step, HostStep)
        getattr(step, verb)(backend, Work(facts.all[number], keep, netns=case["netns"]))
    return points.names


if __name__ == "__main__":
    serve(work)
