"""Backends by name: entry points of the group `dradriver.backends`, imported only where configured."""

from importlib.metadata import entry_points
from typing import Any

from dradriver.backend import Backend, ClaimConfig, ConfigError, decode
from dradriver.config.load import Settings, SettingsError
from dradriver.host import Host
from dradriver.model import shown
from dradriver.model.names import check_label
from dradriver.model.text import plain

GROUP = "dradriver.backends"


def load_backends(settings: Settings) -> tuple[tuple[str, Backend[Any, Any]], ...]:
    """Return (driver name, backend) for each configured backend; build the node that stands in for this host.

    Raises SettingsError.
    """
    configured = [(driver, kind) for driver, kinds in settings.drivers for kind in kinds]
    classes = {kind: _class(settings, kind) for _, kind in configured}
    for kind in settings.options:
        if kind not in classes:
            used = ", ".join(sorted(classes))
            raise SettingsError(
                f"{settings.source}: backends.{plain(kind)}: no driver uses it; used are {used}"
            )
    if settings.stand_in:
        try:
            settings.stand_in.build()
        except (ConfigError, OSError) as error:
            raise SettingsError(f"{settings.source}: {error}") from None
    return tuple((driver, _made(settings, classes[kind])) for driver, kind in configured)


def _class(settings: Settings, kind: str) -> type[Backend[Any, Any]]:
    stand_in = settings.stand_in.backends.get(kind) if settings.stand_in else None
    if stand_in is None:
        return _installed(settings, kind)
    if stand_in.config_types or not entry_points(group=GROUP, name=kind):
        return stand_in
    fields = {"config_types": _TypesInstalled(settings, kind), "__module__": stand_in.__module__}
    return type(stand_in.__name__, (stand_in,), fields)


class _TypesInstalled:
    """The claim configuration of the backend that another one stands in for.

    Claims are written for real hardware: what they bring is checked as there, and has no effect. The backend is
    imported, with the packages for its hardware, once a claim brings any.
    """

    def __init__(self, settings: Settings, kind: str) -> None:
        self._settings = settings
        self._kind = kind

    def __get__(self, instance: object, owner: type[Backend[Any, Any]]) -> tuple[type[ClaimConfig], ...]:
        owner.config_types = found = _installed(self._settings, self._kind).config_types
        return found


def _made(settings: Settings, backend: type[Backend[Any, Any]]) -> Backend[Any, Any]:
    kind = backend.kind
    try:
        check_label(kind, "backend kind")
        options = decode(backend.options_type, settings.options.get(kind, {}), f"backends.{kind}")
        return backend(Host(settings.host_root), options)
    except ConfigError as error:
        raise SettingsError(f"{settings.source}: {error}") from None
    except ValueError as error:
        raise SettingsError(f"{settings.source}: backends.{kind}: {error}") from None


def _installed(settings: Settings, kind: str) -> type[Backend[Any, Any]]:
    points = {point.name: point for point in entry_points(group=GROUP)}
    if kind not in points:
        raise SettingsError(
            f"{settings.source}: drivers: backend {shown(kind)} is not installed; "
            f"installed are {', '.join(sorted(points)) or 'none'}"
        )
    try:
        backend: type[Backend[Any, Any]] = points[kind].load()
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"{settings.source}: drivers: backend {kind} cannot be imported: {error}"
        ) from None
    if not issubclass(backend, Backend) or backend.kind != kind:
        raise SettingsError(f"{settings.source}: drivers: entry point {kind} is not a backend of that kind")
    return backend
