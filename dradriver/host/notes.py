"""What was odd on a host while it was read."""

from dataclasses import dataclass, field

from dradriver.host.cpuset import CPUSet


@dataclass(slots=True)
class Notes:
    """Collects remarks; one remark that holds for many CPUs stays one line."""

    _cpus: dict[str, list[int]] = field(default_factory=dict)

    def add(self, remark: str, cpu: int | None = None) -> None:
        """Add `remark`, said of `cpu` if given."""
        cpus = self._cpus.setdefault(remark, [])
        if cpu is not None:
            cpus.append(cpu)

    def lines(self) -> tuple[str, ...]:
        """Return the remarks in the order in which each was first made."""
        return tuple(
            f"{remark} (CPUs {CPUSet(cpus)})" if cpus else remark for remark, cpus in self._cpus.items()
        )
