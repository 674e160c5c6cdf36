"""Whatever claim object comes, and whatever configuration in it: an answer, or a clear error for that claim alone.

Random claims go through the real engine with all backends; nothing ever ends in an exception in the log, and nothing is
left behind.
"""

import logging
from collections import Counter
from typing import Any

import pytest

from crashes import directory
from dradriver.claims import ClaimNotFoundError
from dradriver.model import ClaimRef
from wholenode import Instance, WholeNode, check_agreement, check_nothing_left
from wildclaims import Wild

MANY, FEW = 1000, 250
"""For each way to divide the backends among drivers."""

KEPT = 4
"""Claims that stay prepared while others come, so that some meet what is held."""


class Objects:
    """Claims by name, as they are."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}

    def get(self, ref: ClaimRef, deadline: float) -> Any:
        if ref.name not in self.objects:
            raise ClaimNotFoundError("no such claim")
        return self.objects[ref.name]


@pytest.mark.parametrize("grouped", [False, True], ids=["a driver for each kind", "one driver for all kinds"])
def test_any_claim_gives_an_answer_or_a_clear_error(
    grouped: bool, caplog: pytest.LogCaptureFixture, everything: bool
) -> None:
    count = MANY if everything else FEW
    caplog.set_level(logging.WARNING)
    objects = Objects()
    with directory() as root:
        node = WholeNode(root, grouped=grouped)
        instance = Instance(node).activate(objects)
        try:
            outcomes = run(node, instance, objects, count, seed=4 + grouped)
            check_nothing_left(node)
        finally:
            instance.stop()
    for entry in caplog.records:
        assert entry.exc_info is None, entry.getMessage()
        assert entry.levelno < logging.ERROR, entry.getMessage()
        assert len(entry.getMessage()) < 2000
    assert outcomes["prepared"] > count // 10, "not all is refused at the door"
    assert outcomes["refused"] > count // 10


def run(node: WholeNode, instance: Instance, objects: Objects, count: int, seed: int) -> Counter[str]:
    """Prepare, repeat and unprepare that many claims; return how they went."""
    wild = Wild(node, seed)
    outcomes: Counter[str] = Counter()
    kept: list[str] = []
    for number in range(count):
        name = f"c{number}"
        objects.objects[name] = wild.claim(name, f"uid-{name}")
        for driver in node.drivers:
            answer = instance.prepare(driver, name)[name]
            if isinstance(answer, str):
                check_error(answer)
                outcomes["refused"] += 1
            else:
                outcomes["prepared" if answer else "nothing"] += 1
                assert instance.prepare(driver, name)[name] == answer
        kept.append(name)
        if len(kept) > KEPT:
            check_agreement(node, instance.journal)
            undo(node, instance, kept.pop(0))
    for name in kept:
        undo(node, instance, name)
    return outcomes


def undo(node: WholeNode, instance: Instance, name: str) -> None:
    """Unprepare a claim."""
    for driver in node.drivers:
        assert instance.unprepare(driver, name) == {name: None}


def check_error(error: str) -> None:
    """Assert that people can read it, and that it says more than that something went wrong."""
    assert error
    assert error.isprintable()
    assert len(error) < 1500
    assert "internal error" not in error
    assert "object at 0x" not in error
