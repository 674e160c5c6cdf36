"""The journal: one SQLite file that says what this node's claims hold and what was done for them.

Write-ahead logging with `synchronous=FULL`: what a method has returned from survives a crash and a power cut. One
connection writes, under one lock; a claim's cost does not grow with the number of claims.
"""

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dradriver.engine.records import (
    DeviceRecord,
    Hold,
    Record,
    Sandboxed,
    SandboxRecord,
    State,
    StepState,
    decode_json,
    decode_places,
    decode_step,
    encode,
    unstarted,
)
from dradriver.engine.schema import MIGRATIONS, Migration
from dradriver.model import ClaimRef, Quantity

log = logging.getLogger(__name__)

_CLAIM = (
    "driver, uid, namespace, name, state, boot, created, devices, message, pod_claim, generation, sandbox"
)

_UNREADABLE = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH}
"""Primary result codes of a file that holds no such database; all others may pass."""


class JournalError(Exception):
    """The journal cannot be used; the message says why and what helps."""


class _UnreadableError(Exception):
    """The file is no journal, and never will be."""


class JournalView:
    """The reading side of a journal. Every method is safe to call from any thread, and raises JournalError."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self._db = db
        self._lock = threading.RLock()
        self._inside = False

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection for reads that see one state of the file."""
        with self._lock, self._told("read"), self._one("BEGIN"):
            yield self._db

    @contextmanager
    def _one(self, begin: str) -> Iterator[None]:
        """Make what is done inside one transaction; nested uses join the outer one."""
        if self._inside:
            yield
            return
        self._db.execute(begin)
        self._inside = True
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            self._inside = False
            if self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")

    @contextmanager
    def _told(self, verb: str) -> Iterator[None]:
        """Turn what SQLite says into a sentence with the file's name."""
        try:
            yield
        except sqlite3.Error as error:
            raise JournalError(f"journal {self.path} cannot be {verb}: {error}") from error

    def check_schema(self) -> None:
        """Raise JournalError unless the file has the schema of this version."""
        with self._reading() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != len(MIGRATIONS):
            raise JournalError(
                f"journal {self.path} has schema {version}, this version reads {len(MIGRATIONS)}: "
                "use the version that the daemon has"
            )

    def check(self) -> None:
        """Read the whole file. Raises JournalError or ValueError where it is damaged."""
        with self._reading() as db:
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise ValueError(f"quick_check: {found}")
        self.fact("boot")
        for record in self.records():
            for hold in record.holds:
                self.taken(hold.unit)

    def fact(self, name: str) -> str | None:
        """Return a fact about the node that the journal was written on."""
        with self._reading() as db:
            row = db.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def get(self, driver: str, uid: str) -> Record | None:
        """Return a claim, or None."""
        with self._reading() as db:
            row = db.execute(
                f"SELECT {_CLAIM} FROM claim WHERE driver = ? AND uid = ?",  # noqa: S608 - fixed names
                (driver, uid),
            ).fetchone()
            return _record(db, row) if row else None

    def records(self) -> list[Record]:
        """Return all claims, oldest first."""
        with self._reading() as db:
            rows = db.execute(
                f"SELECT {_CLAIM} FROM claim ORDER BY created, driver, uid"  # noqa: S608 - fixed names
            ).fetchall()
            return [_record(db, row) for row in rows]

    def devices(self, driver: str) -> frozenset[tuple[str, str]]:
        """Return (pool, device) of every device that a claim of the driver has."""
        with self._reading() as db:
            rows = db.execute("SELECT devices FROM claim WHERE driver = ?", (driver,)).fetchall()
        return frozenset(place for (body,) in rows for place in decode_places(body))

    def version(self) -> int:
        """Return a number that is another one once others changed the file. What is written here does not count."""
        with self._reading() as db:
            (version,) = db.execute("PRAGMA data_version").fetchone()
        return int(version)

    def states(self) -> list[tuple[str, str, float, str]]:
        """Return driver, UID, the time when it was journalled, and the state of each claim, oldest first."""
        with self._reading() as db:
            return db.execute(
                "SELECT driver, uid, created, state FROM claim ORDER BY created, driver, uid"
            ).fetchall()

    def sandboxes(self) -> list[Sandboxed]:
        """Return the claims with steps of phase sandbox, oldest first."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT driver, uid, namespace, name, pod_claim, sandbox FROM claim "
                "WHERE sandbox IS NOT NULL ORDER BY created, driver, uid"
            ).fetchall()
        return [
            Sandboxed(driver, ClaimRef(uid, namespace, name), pod_claim, decode_json(body, SandboxRecord))
            for driver, uid, namespace, name, pod_claim, body in rows
        ]

    def counts(self) -> dict[str, int]:
        """Return the number of claims of each driver that has any."""
        with self._reading() as db:
            return dict(db.execute("SELECT driver, COUNT(*) FROM claim GROUP BY driver"))

    def told(self) -> dict[tuple[str, str], str]:
        """Return what the API server was last told of each claim: (driver, UID) -> digest, empty for nothing."""
        with self._reading() as db:
            rows = db.execute("SELECT driver, uid, told FROM claim").fetchall()
        return {(driver, uid): told for driver, uid, told in rows}

    def taken(self, unit: str) -> Quantity:
        """Return how much of a unit all claims hold together."""
        with self._reading() as db:
            return Quantity(_nano(db, unit))

    def holders(self, unit: str) -> list[tuple[str, ClaimRef, Quantity]]:
        """Return who holds how much of a unit: driver, claim, amount; several rows for several devices."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT driver, uid, namespace, name, amount FROM hold JOIN claim USING (driver, uid) "
                "WHERE unit = ? ORDER BY created",
                (unit,),
            ).fetchall()
        return [
            (driver, ClaimRef(uid, namespace, name), Quantity.parse(amount))
            for driver, uid, namespace, name, amount in rows
        ]

    def held(self, prefix: str) -> Mapping[str, ClaimRef]:
        """Return the units that start with `prefix`, without it, and who holds them.

        The names are read at once, a holder when it is asked for: only a refusal names any.
        """
        with self._reading() as db:
            rows = db.execute(
                "SELECT DISTINCT unit FROM hold WHERE unit >= ? AND unit < ?",
                (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)),
            ).fetchall()
        return _Held(self, prefix, frozenset(unit[len(prefix) :] for (unit,) in rows))


class _Held(Mapping[str, ClaimRef]):
    """Names of held units, and their holders when they are asked for."""

    def __init__(self, journal: JournalView, prefix: str, names: frozenset[str]) -> None:
        self._journal = journal
        self._prefix = prefix
        self._names = names

    def __getitem__(self, name: str) -> ClaimRef:
        holders = self._journal.holders(self._prefix + name) if name in self._names else []
        if not holders:
            raise KeyError(name)
        return holders[0][1]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Journal(JournalView):
    """The open journal. Every method is safe to call from any thread, and raises JournalError."""

    def __init__(self, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        """Open or create the file, and bring its schema forward.

        Raises JournalError where the file cannot be used now, or has a schema from the future. `open_journal` also
        deals with a file that is none.
        """
        super().__init__(path, _connect(path))
        try:
            with self._told("used"):
                self._migrate(migrations)
        except BaseException:
            self._db.close()
            raise

    def _migrate(self, migrations: Sequence[Migration]) -> None:
        with self.transaction():
            # Read inside the transaction: another process may be at it too.
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > len(migrations):
                raise JournalError(
                    f"journal {self.path} has schema {version}, this version knows {len(migrations)}: "
                    "run the newer version again, or unprepare all claims with it first"
                )
            for number, statements in enumerate(migrations[version:], version + 1):
                for statement in statements:
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {number}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make what is done inside one durable change; nested uses join the outer one."""
        with self._lock, self._told("written"), self._one("BEGIN IMMEDIATE"):
            yield

    def set_fact(self, name: str, value: str) -> None:
        """Keep a fact about the node."""
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))

    def insert(self, record: Record) -> None:
        """Write a claim that is not there yet, with its steps and holds."""
        key = (record.driver, record.ref.uid)
        with self.transaction():
            self._db.execute(
                f"INSERT INTO claim ({_CLAIM}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - fixed names
                (
                    *key,
                    record.ref.namespace,
                    record.ref.name,
                    record.state.value,
                    record.boot,
                    record.created,
                    encode(record.devices),
                    record.message,
                    record.pod_claim,
                    record.generation,
                    encode(record.sandbox) if record.sandbox else None,
                ),
            )
            self._db.executemany(
                "INSERT INTO step (driver, uid, n, state, facts, body) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (*key, n, step.state.value, encode(step.facts), encode(unstarted(step)))
                    for n, step in enumerate(record.steps)
                ),
            )
            for hold in record.holds:
                self._db.execute(
                    "INSERT INTO hold (unit, driver, uid, n, amount) VALUES (?, ?, ?, ?, ?)",
                    (hold.unit, *key, hold.index, str(hold.amount)),
                )
                self._count(hold.unit, hold.amount.nano)

    def _count(self, unit: str, nano: int) -> None:
        total = _nano(self._db, unit) + nano
        if total:
            self._db.execute("INSERT OR REPLACE INTO unit (unit, nano) VALUES (?, ?)", (unit, str(total)))
        else:
            self._db.execute("DELETE FROM unit WHERE unit = ?", (unit,))

    def update(
        self,
        driver: str,
        uid: str,
        *,
        state: State | None = None,
        devices: tuple[DeviceRecord, ...] | None = None,
        message: str | None = None,
        generation: int | None = None,
        sandbox: SandboxRecord | None = None,
        steps: Sequence[tuple[int, StepState]] = (),
    ) -> None:
        """Change what is given of a claim and the states of its steps, in one durable change."""
        fields = {
            "state": None if state is None else state.value,
            "devices": None if devices is None else encode(devices),
            "message": message,
            "generation": generation,
            "sandbox": None if sandbox is None else encode(sandbox),
        }
        with self.transaction():
            for column, value in fields.items():
                if value is not None:
                    self._db.execute(
                        f"UPDATE claim SET {column} = ? WHERE driver = ? AND uid = ?",  # noqa: S608 - fixed names
                        (value, driver, uid),
                    )
            self._db.executemany(
                "UPDATE step SET state = ? WHERE driver = ? AND uid = ? AND n = ?",
                ((step_state.value, driver, uid, n) for n, step_state in steps),
            )

    def set_told(self, told: Mapping[tuple[str, str], str]) -> None:
        """Keep what the API server was told: (driver, UID) -> digest. Claims that are gone are passed over."""
        with self.transaction():
            self._db.executemany(
                "UPDATE claim SET told = ? WHERE driver = ? AND uid = ?",
                ((digest, *key) for key, digest in told.items()),
            )

    def set_step_facts(self, driver: str, uid: str, n: int, facts: dict[str, Any]) -> None:
        """Keep what a step found out, before anything depends on it."""
        with self.transaction():
            self._db.execute(
                "UPDATE step SET facts = ? WHERE driver = ? AND uid = ? AND n = ?",
                (encode(facts), driver, uid, n),
            )

    def delete(self, driver: str, uid: str) -> None:
        """Forget a claim, its steps and its holds."""
        with self.transaction():
            holds = self._db.execute(
                "SELECT unit, amount FROM hold WHERE driver = ? AND uid = ?", (driver, uid)
            ).fetchall()
            for unit, amount in holds:
                self._count(unit, -Quantity.parse(amount).nano)
            for table in ("claim", "step", "hold"):
                self._db.execute(
                    f"DELETE FROM {table} WHERE driver = ? AND uid = ?",  # noqa: S608 - fixed names
                    (driver, uid),
                )


def _nano(db: sqlite3.Connection, unit: str) -> int:
    row = db.execute("SELECT nano FROM unit WHERE unit = ?", (unit,)).fetchone()
    return int(row[0]) if row else 0


def _record(db: sqlite3.Connection, row: tuple[Any, ...]) -> Record:
    driver, uid, namespace, name, state, boot, created, devices, message, pod_claim, generation, sandbox = row
    steps = db.execute(
        "SELECT state, facts, body FROM step WHERE driver = ? AND uid = ? ORDER BY n", (driver, uid)
    ).fetchall()
    holds = db.execute(
        "SELECT unit, n, amount FROM hold WHERE driver = ? AND uid = ? ORDER BY unit, n", (driver, uid)
    ).fetchall()
    return Record(
        driver,
        ClaimRef(uid, namespace, name),
        State(state),
        boot,
        created,
        decode_json(devices, tuple[DeviceRecord, ...]),
        tuple(decode_step(*step) for step in steps),
        tuple(Hold(unit, n, Quantity.parse(amount)) for unit, n, amount in holds),
        message,
        pod_claim,
        generation,
        decode_json(sandbox, SandboxRecord) if sandbox else None,
    )


def _connect(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    except (OSError, sqlite3.Error) as error:
        raise JournalError(f"journal {path} cannot be opened: {error}") from error
    try:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "temp_store = MEMORY"):
            db.execute(f"PRAGMA {pragma}")
    except sqlite3.Error as error:
        db.close()
        raise JournalError(f"journal {path} cannot be used: {error}") from error
    return db


def open_journal(path: Path) -> tuple[Journal, Path | None]:
    """Open the journal; a file that is no readable journal is set aside first, and its new place returned.

    Raises JournalError where the file may be sound but cannot be used now: no space, no permission, a schema from
    the future.
    """
    try:
        return _sound(path), None
    except _UnreadableError as error:
        aside = _set_aside(path)
        log.error("journal %s cannot be read (%s): set aside as %s", path, error, aside)
    return Journal(path), aside


def _sound(path: Path) -> Journal:
    """Open the journal and read it from end to end. Raises _UnreadableError where that fails for good."""
    journal = None
    try:
        journal = Journal(path)
        journal.check()
    except (JournalError, ValueError) as error:
        if journal:
            journal.close()
        if _is_unreadable(error):
            raise _UnreadableError(str(error)) from error
        raise
    return journal


def _is_unreadable(error: Exception) -> bool:
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        code: int = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        return code & 0xFF in _UNREADABLE or code == sqlite3.SQLITE_IOERR_SHORT_READ
    return isinstance(error, ValueError)


def _set_aside(path: Path) -> Path:
    stem = f"{path.name}.unreadable-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    aside = path.with_name(stem)
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{stem}-{number}")
    try:
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
    except OSError as error:
        raise JournalError(f"journal {path} cannot be read, nor set aside: {error}") from error
    return aside


def view_journal(path: Path) -> JournalView:
    """Open a journal for reading only, also while a daemon has it open. Raises JournalError."""
    try:
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False, timeout=5.0
        )
    except sqlite3.Error as error:
        raise JournalError(f"journal {path} cannot be opened: {error}") from error
    view = JournalView(path, db)
    try:
        view.check_schema()
    except BaseException:
        db.close()
        raise
    return view
