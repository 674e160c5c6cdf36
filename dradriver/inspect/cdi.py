"""Checks of the directories that container runtimes read CDI specs from."""

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from dradriver.documents import read_documents
from dradriver.engine import Record, State
from dradriver.inspect.files import can_write, is_directory, nearest
from dradriver.inspect.result import Check, error, ok, warning
from dradriver.model import shown
from dradriver_cdi import CDIError, Store, claim_file_name, claim_file_prefix

_MAX_BYTES = 4 << 20


def check_cdi_directory(directory: Path) -> Check:
    """Check that CDI files can be written."""
    name, place = "CDI directory", nearest(directory)
    if not is_directory(place):
        return error(name, f"{place}: is not a directory", "remove what is there, or name another as cdi")
    if not can_write(place):
        return error(
            name, f"{place}: cannot be written", "run as root, mount it writable, or name another as cdi"
        )
    return ok(name, f"{directory}: {'can be written' if place == directory else 'will be made'}")


def check_cdi_files(
    directory: Path, drivers: Collection[str], records: Sequence[Record] | None
) -> list[Check]:
    """Check the files of our drivers: valid, one for each prepared claim, and no other.

    records   the claims in the journal; None where it cannot be read
    """
    store = Store(directory)
    checks = []
    count = 0
    for driver in drivers:
        try:
            names = [*store.names(claim_file_prefix(driver)), *store.names(f"{driver}-base.json")]
        except OSError as problem:
            return [error("CDI files", f"{directory}: {problem.strerror}", "run as root")]
        count += len(names)
        for name in names:
            try:
                store.read(name)
            except (CDIError, OSError) as problem:
                checks.append(
                    error(
                        "CDI files",
                        f"{directory / name}: {shown(str(problem), 300)[1:-1]}",
                        "restart the daemon: it writes the files of prepared claims anew; remove any other",
                    )
                )
        if records is not None:
            checks += _compared(directory, driver, names, records)
    return checks or [ok("CDI files", f"{directory}: {count} of ours, all valid and wanted")]


def _compared(directory: Path, driver: str, names: Collection[str], records: Sequence[Record]) -> list[Check]:
    mine = [record for record in records if record.driver == driver]
    known = {claim_file_name(driver, record.ref.uid) for record in mine}
    checks = [
        warning(
            "CDI files",
            f"{directory / name}: of no claim in the journal",
            "start or restart the daemon: it removes stale files when it becomes active",
        )
        for name in names
        if name.startswith(claim_file_prefix(driver)) and name not in known
    ]
    return checks + [
        error(
            "CDI files",
            f"{directory / claim_file_name(driver, record.ref.uid)}: missing, for claim {record.ref}",
            "restart the daemon: it writes the files of prepared claims anew; until then their containers cannot start",
        )
        for record in mine
        if record.state is State.PREPARED and claim_file_name(driver, record.ref.uid) not in names
    ]


def check_cdi_conflicts(directories: Collection[Path], drivers: Collection[str]) -> list[Check]:
    """Check that no CDI device is defined twice in a directory: a runtime then knows neither of them.

    All files are looked at, those of others too. A file that is no CDI spec at all is named.
    """
    checks = []
    for directory in directories:
        where: dict[str, list[str]] = {}
        for path, spec in _specs(directory):
            if isinstance(spec, str):
                checks.append(
                    warning(
                        "CDI conflicts",
                        f"{path}: {spec}",
                        "mend or remove it: runtimes complain, and skip it",
                    )
                )
                continue
            for device in _device_names(spec):
                where.setdefault(device, []).append(path.name)
        for device, files in where.items():
            if len(files) > 1:
                made = error if device.partition("/")[0] in drivers else warning
                checks.append(
                    made(
                        "CDI conflicts",
                        f"{directory}: {shown(device, 200)[1:-1]} is defined in {' and '.join(sorted(files))}",
                        "remove all but one of the files: until then the runtime knows none of the devices",
                    )
                )
    return checks or [ok("CDI conflicts", f"none in {', '.join(str(one) for one in directories)}")]


def _specs(directory: Path) -> Iterator[tuple[Path, Any]]:
    """Yield each spec file with what it holds, or with what is wrong with it as a text."""
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.is_file())
    except OSError:
        return
    for name in names:
        path = directory / name
        if path.suffix not in {".json", ".yaml"}:
            continue
        try:
            documents = read_documents(path, _MAX_BYTES)
            yield path, documents[0] if len(documents) == 1 else documents
        except FileNotFoundError:  # a claim ended meanwhile
            continue
        except OSError as problem:
            yield path, f"cannot be read: {problem.strerror}"
        except ValueError as problem:
            yield path, str(problem)


def _device_names(spec: object) -> list[str]:
    if not isinstance(spec, dict) or not isinstance(spec.get("devices"), list):
        return []
    names = [device.get("name") for device in spec["devices"] if isinstance(device, dict)]
    return [f"{spec.get('kind')}={name}" for name in names]
