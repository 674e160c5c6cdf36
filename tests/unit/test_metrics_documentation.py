"""docs/inspect.md names every metric and every Event, and no other."""

import re
from pathlib import Path

from dradriver.daemon import publishing
from dradriver.daemon.metrics import Metrics
from dradriver.daemon.publishing import Published

PAGE = (Path(__file__).parents[2] / "docs/inspect.md").read_text()


class Facts:
    """A daemon that has a little of everything."""

    def published(self) -> tuple[Published, ...]:
        return (Published("d", "p"),)

    def health(self) -> list[tuple[str, str, int]]:
        return [("d", "Healthy", 1)]

    def claims(self) -> list[tuple[str, int]]:
        return [("d", 1)]

    def active(self) -> bool:
        return True

    def reachable(self) -> bool | None:
        return True


def test_every_metric_is_described() -> None:
    metrics = Metrics(Facts())
    metrics.call("d", "prepare", 0.1, 1)
    metrics.request("get", 200, 0.1)
    made = {
        family.name + ("_total" if family.type == "counter" else ""): sorted(
            family.samples[0].labels.keys() - {"le"}
        )
        for family in metrics.registry.collect()
        if family.name.startswith("dradriver_")
    }
    rows = re.findall(r"^\| `(dradriver_\w+)` \| (.*?) \|", PAGE, flags=re.MULTILINE)
    assert {name: sorted(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == made


def test_every_event_is_described() -> None:
    section = PAGE.split("## Events")[1]
    named = set(re.findall(r"^\| `([A-Z]\w+)` \|", section, flags=re.MULTILINE))
    source = Path(publishing.__file__).read_text()
    assert named == set(re.findall(r'\("([A-Z][A-Za-z]+)", before', source))
