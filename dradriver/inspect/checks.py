"""All checks of a node, in the order in which things must work."""

import os
import time
from collections.abc import Sequence
from importlib.metadata import entry_points

from dradriver.config import Settings, SettingsError, load_backends
from dradriver.config.backends import GROUP
from dradriver.daemon.report import Report
from dradriver.engine import Pool, Pools, Record, recall, refresh_all
from dradriver.host import Host, read_topology
from dradriver.inspect.cdi import check_cdi_conflicts, check_cdi_directory, check_cdi_files
from dradriver.inspect.files import is_directory
from dradriver.inspect.kubelet import (
    check_directories,
    check_kubelet_root,
    check_managers,
    check_registration,
    check_same_path,
    check_socket_paths,
)
from dradriver.inspect.nri import check_nri
from dradriver.inspect.published import check_published, told_report, unpublished_mend
from dradriver.inspect.result import Check, counted, error, ok, warning
from dradriver.inspect.runtime import check_runtime
from dradriver.inspect.state import check_journal, check_lock, check_state_directory
from dradriver.inspect.system import (
    check_clock,
    check_host_root,
    check_process,
    check_topology,
    check_uevents,
    check_versions,
    unmade,
)
from dradriver.model import Health, PoolContent
from dradriver.sim.kubelet import get_info, registration_sockets
from dradriver.slices import Pool as SlicePool
from dradriver.slices import pool_specs


def check_node(settings: Settings | SettingsError, *, own_directory: bool) -> list[Check]:
    """Return all checks. Nothing is changed, and no check fails for another's sake.

    settings        those that loading gave, or why there are none
    own_directory   everything is kept below a directory of one's own (`--dir`)
    """
    process = [check_process(own_directory=own_directory), check_uevents()]
    if isinstance(settings, SettingsError):
        return [
            error(
                "configuration", str(settings), "docs/configuration.md names every field and what it takes"
            ),
            *process,
            check_versions(Host()),
            check_clock(time.time(), None),
            unmade("everything else", "there is no configuration"),
        ]
    pools = _pools(settings)  # first: a node that stands in for the host is there from then on
    host = Host(settings.host_root)
    topology = read_topology(host)
    mountinfo = Host().read_text("proc/self/mountinfo") or ""
    state, records, active = _state(settings, mountinfo, own_directory=own_directory)
    if isinstance(pools, Pools):
        recall(pools, records or (), host.boot_id() or "")
        refresh_all(pools.all)
    report = told_report(settings.state)
    backends = _backends(pools, settings.node, topology.notes)
    return [
        _configuration(settings),
        check_versions(host),
        *process,
        check_clock(time.time(), max((record.created for record in records or ()), default=None)),
        check_host_root(host),
        check_topology(topology),
        *backends,
        *state,
        *check_published(
            report,
            settings.node,
            [name for name, _ in settings.drivers],
            active=active,
            known={check.seen for check in backends},
        ),
        *_kubelet(settings, mountinfo, active, own_directory=own_directory),
        *_cdi(settings, records),
        *check_runtime(host, settings.cdi, own_directory=own_directory),
        check_nri(
            settings.runtime,
            report.runtime if isinstance(report, Report) else None,
            active=active,
            backends=[] if isinstance(pools, SettingsError) else [type(pool.backend) for pool in pools.all],
        ),
    ]


def _configuration(settings: Settings) -> Check:
    drivers = ", ".join(f"{name} ({', '.join(kinds)})" for name, kinds in settings.drivers)
    source = "all defaults" if settings.source == "configuration" else settings.source
    used = {kind for _, kinds in settings.drivers for kind in kinds}
    idle = sorted({point.name for point in entry_points(group=GROUP)} - used)
    rest = f"; used by none: {', '.join(idle)}" if idle else ""
    return ok("configuration", f"{source}: node {settings.node}, drivers {drivers}{rest}")


def _pools(settings: Settings) -> Pools | SettingsError:
    try:
        return Pools(settings.node, load_backends(settings))
    except SettingsError as problem:
        return problem


_WHY = "see why beside it, and the backend's options in docs/configuration.md"
_MISSING = "is the hardware there, and its driver loaded?"


def _backends(pools: Pools | SettingsError, node: str, known: Sequence[str]) -> list[Check]:
    if isinstance(pools, SettingsError):
        return [error("backends", str(pools), "mend the configuration, or install the backend")]
    return [check for pool in pools.all for check in check_pool(pool, node, known)]


def check_pool(pool: Pool, node: str, known: Sequence[str] = ()) -> list[Check]:
    """Check what a backend found, and that all of it can be published.

    known   what was said of the host already
    """
    name, content = f"backend {pool.backend.kind}", pool.snapshot.content
    if pool.snapshot.error:
        return [error(name, pool.snapshot.error, "until this is mended the backend offers nothing new")]
    notes = [note for note in content.notes if note not in known]
    seen = "; ".join([counted(len(content.devices), "device"), *notes])
    made = pool_specs(SlicePool(pool.driver, node, pool.name), content)
    unpublished = [*map(str, made.left_out), *made.warnings]
    offered = sum(len(spec.get("devices", ())) for spec in made.specs)
    checks = [
        *(
            warning(name, text, "see the backend's options in docs/configuration.md")
            for text in content.warnings
        ),
        *(warning(name, text, unpublished_mend(offered)) for text in unpublished),
        *(warning(name, text, "repair or replace it: no new claim gets it") for text in _sick(content)),
    ]
    if not content.devices:
        return [
            *checks,
            warning(name, seen, "nothing is offered: " + (_WHY if notes else _MISSING)),
        ]
    return [ok(name, seen), *checks]


def _sick(content: PoolContent) -> list[str]:
    """Return what is said of unhealthy devices, once for all parts and variants of a thing of which the same is."""
    found: dict[tuple[str, str], list[str]] = {}
    for device in content.devices:
        if device.health is Health.UNHEALTHY:
            found.setdefault((device.physical, device.health_message), []).append(device.name)
    return [
        (names[0] if len(names) == 1 else f"{thing} ({counted(len(names), 'device')})")
        + f": {message or 'unhealthy'}"
        for (thing, message), names in found.items()
    ]


def _state(
    settings: Settings, mountinfo: str, *, own_directory: bool
) -> tuple[list[Check], list[Record] | None, bool | None]:
    lock, active = check_lock(settings.lock)
    journal, records = check_journal(settings.journal, Host(settings.host_root).boot_id())
    room = check_state_directory(settings.state, mountinfo, own_directory=own_directory)
    return [*room, lock, *journal], records, active


def _kubelet(settings: Settings, mountinfo: str, active: bool | None, *, own_directory: bool) -> list[Check]:
    root, drivers = settings.kubelet_root, [name for name, _ in settings.drivers]
    kinds = [kind for _, served in settings.drivers for kind in served]
    checks = [check_kubelet_root(root, own_directory=own_directory)]
    lengths, paths = check_socket_paths(drivers, root, settings.instance)
    checks += lengths
    if not is_directory(root):
        return checks
    if not own_directory:
        checks.append(check_same_path(root, mountinfo))
    checks += check_directories(paths, os.geteuid())
    answers = [get_info(socket) for socket in registration_sockets(root / "plugins_registry")]
    checks += [check_registration(driver, answers, active=active) for driver in drivers]
    return checks if own_directory else [*checks, *check_managers(root, kinds)]


def _cdi(settings: Settings, records: Sequence[Record] | None) -> list[Check]:
    drivers = [name for name, _ in settings.drivers]
    directories = [settings.cdi]
    static = Host(settings.host_root).path("etc/cdi")
    if is_directory(static) and static != settings.cdi:
        directories.insert(0, static)
    return [
        check_cdi_directory(settings.cdi),
        *check_cdi_files(settings.cdi, drivers, records),
        *check_cdi_conflicts(directories, drivers),
    ]
