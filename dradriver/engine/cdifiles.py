"""The CDI files of this daemon: one for each prepared claim, and a base file for each driver that needs one.

With a claim's file go the files of device metadata that it mounts. It also carries the claim's journal record as an
annotation, which the runtime ignores: what a journal lost is taken over from the files.
"""

import json
import logging
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from dradriver.backend import UnavailableError
from dradriver.engine.locks import Key
from dradriver.engine.metadata import MetadataFiles, without_mount
from dradriver.engine.pools import Pool
from dradriver.engine.records import Record, builtins, decode_record
from dradriver.model import ClaimRef, PreparedDevice
from dradriver_cdi import (
    CDIError,
    ContainerEdits,
    Device,
    Spec,
    Store,
    claim_file_name,
    claim_file_prefix,
    qualified,
)

log = logging.getLogger(__name__)

RECORD = "dradriver.io/record"

MARKER = "DRADRIVER_"
"""How the variables begin that name a container's claims."""


class CDIFiles:
    """The files of this daemon's drivers in one CDI directory."""

    def __init__(self, store: Store, metadata: MetadataFiles | None = None) -> None:
        self._store = store
        self._metadata = metadata

    def write_claim(self, record: Record) -> None:
        """Write the claim's file, and before it what it mounts. Raises CDIError or OSError."""
        mounts: Mapping[int, ContainerEdits] = {}
        if self._metadata:
            self._metadata.write(record)
            mounts = self._metadata.edits(record)
        devices = tuple(
            Device(
                name=_device_name(record, index),
                edits=_marker(record, index)
                + ContainerEdits.from_dict(device.edits)
                + mounts.get(index, ContainerEdits()),
            )
            for index, device in enumerate(record.devices)
        )
        # The edits stand in the file already, and the attributes are found again.
        bare = replace(
            record, devices=tuple(replace(device, edits={}, attributes={}) for device in record.devices)
        )
        spec = Spec(
            kind=f"{record.driver}/claim",
            devices=devices,
            annotations={RECORD: json.dumps(builtins(bare), separators=(",", ":"))},
        )
        self._store.write(claim_file_name(record.driver, record.ref.uid), spec)

    def remove_claim(self, driver: str, ref: ClaimRef) -> None:
        """Remove the claim's file if it is there, then what it mounts. Raises OSError where that is not possible."""
        name = claim_file_name(driver, ref.uid)
        try:
            self._store.remove(name)
        except OSError:
            # A directory that cannot be written does not keep a claim from being undone that has no file there.
            if os.path.lexists(self._store.directory / name):
                raise
        if self._metadata:
            self._metadata.remove(driver, ref)

    def write_base(self, driver: str, pools: Collection[Pool], wanted: Collection[str]) -> None:
        """Bring the driver's base file to what its backends need now.

        A backend that needs nothing now, or was not heard yet, keeps the device that it had: a running container is
        started again by its name. Raises UnavailableError where one of the `wanted` backends has none.
        """
        now = _needed(pools)
        devices = self._base(driver) | now if len(now) < len(pools) else now
        for kind in wanted:
            if kind not in devices:
                raise UnavailableError(
                    f"what containers with devices of backend {kind} need is not known yet"
                )
        self._write_base(driver, devices)

    def trim_base(self, driver: str, pools: Collection[Pool], used: Collection[str]) -> None:
        """Bring the base file to what is needed now, and drop what neither a backend nor a claim speaks for.

        used   the backend kinds whose device the answer to a live claim named
        """
        silent = {pool.backend.kind for pool in pools if not pool.snapshot.probed}
        old = {kind: edits for kind, edits in self._base(driver).items() if kind in silent or kind in used}
        self._write_base(driver, old | _needed(pools))

    def _write_base(self, driver: str, devices: Mapping[str, ContainerEdits]) -> None:
        if devices:
            named = tuple(Device(name=kind, edits=devices[kind]) for kind in sorted(devices))
            self._store.write(_base_name(driver), Spec(kind=f"{driver}/base", devices=named))
        else:
            self._store.remove(_base_name(driver))

    def _base(self, driver: str) -> dict[str, ContainerEdits]:
        try:
            return {device.name: device.edits for device in self._store.read(_base_name(driver)).devices}
        except FileNotFoundError:
            return {}
        except CDIError as error:
            log.error("CDI file %s is written anew: %s", _base_name(driver), error)
            return {}

    def reconcile(self, drivers: Collection[str], keep: Collection[Record]) -> None:
        """Remove the files of claims that nobody keeps, and temporary files that a crash left."""
        for driver in drivers:
            names = {claim_file_name(driver, record.ref.uid) for record in keep if record.driver == driver}
            base = _base_name(driver)
            stale = self._store.reconcile(claim_file_prefix(driver), names)
            for name in (*stale, *self._store.reconcile(base, {base})):
                log.warning("stale CDI file %s is removed", name)
        if self._metadata:
            self._metadata.reconcile(drivers, keep)

    def records(self, drivers: Collection[str], known: Collection[Key] = ()) -> Iterator[Record]:
        """Yield the records that the claim files of these drivers carry, but for claims that are known.

        Their form is that of a record; whether they make sense is the caller's to find out.
        """
        names = {claim_file_name(*key) for key in known}
        for driver in drivers:
            for name in self._store.names(claim_file_prefix(driver)):
                if name in names:
                    continue
                try:
                    record = self._record(name)
                    if record.driver != driver or claim_file_name(driver, record.ref.uid) != name:
                        raise ValueError("its record is that of another claim")
                except (CDIError, OSError, ValueError, KeyError, RecursionError) as error:
                    log.error("CDI file %s tells nothing of its claim: %s", name, error)
                    continue
                yield record

    def _record(self, name: str) -> Record:
        status = (self._store.directory / name).lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ValueError("it is not a plain file that only this user may write")
        spec = self._store.read(name)
        record = decode_record(json.loads(spec.annotations[RECORD]))
        if [device.name for device in spec.devices] != [
            _device_name(record, index) for index in range(len(record.devices))
        ]:
            raise ValueError("its devices are not those of its record")
        marked = zip(record.devices, spec.devices, strict=True)
        return replace(
            record,
            devices=tuple(
                replace(device, edits=without_mount(replace(found.edits, env=found.edits.env[1:])).to_dict())
                for device, found in marked
            ),
        )


def answer(record: Record) -> tuple[PreparedDevice, ...]:
    """Return what the kubelet is told of a prepared claim: the same whenever it asks."""
    return tuple(
        PreparedDevice(
            requests=(device.allocated.base_request,),
            pool=device.allocated.pool,
            device=device.allocated.device,
            cdi_ids=(
                qualified(f"{record.driver}/claim", _device_name(record, index)),
                *([qualified(f"{record.driver}/base", device.backend)] if device.base else ()),
            ),
            share_id=device.allocated.share_id,
        )
        for index, device in enumerate(record.devices)
    )


def _needed(pools: Collection[Pool]) -> dict[str, ContainerEdits]:
    return {pool.backend.kind: pool.snapshot.base for pool in pools if pool.snapshot.base}


def _device_name(record: Record, index: int) -> str:
    return f"{record.ref.uid}-{index}"


def marker(driver: str, uid: str, index: int) -> str:
    """Return the variable by which a container is known to use device `index` of a claim.

    Runtimes tell NRI plugins the CDI devices of a container from NRI 0.10 on only.
    """
    name = f"{MARKER}{driver}_{uid}_{index}".upper()
    return "".join(char if char.isalnum() else "_" for char in name)


def _marker(record: Record, index: int) -> ContainerEdits:
    """Return the edit that sets the marker. It also keeps a device valid that needs no other: CDI wants one."""
    name = marker(record.driver, record.ref.uid, index)
    return ContainerEdits(env=(f"{name}={record.devices[index].allocated.device}",))


def _base_name(driver: str) -> str:
    return f"{driver}-base.json"
