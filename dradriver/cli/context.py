"""What the commands share: the settings, the pools of this node, and the errors that end a command."""

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import click

from dradriver.cli.output import plain
from dradriver.config import Settings, SettingsError, load, load_backends
from dradriver.engine import JournalError, JournalView, Pools, Record, recall, refresh_all, view_journal
from dradriver.host import Host


class Failure(click.ClickException):
    """A command that could not do what was asked."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        click.echo(f"dradriver: {plain(self.message)}", err=True, file=file)


class Misuse(Failure):
    """Options, arguments or a configuration that say nothing that could be done."""

    exit_code = 2


def quiet_pools() -> None:
    """Have pools log nothing that the commands say themselves; a failure of a backend's own code is logged."""
    logging.getLogger("dradriver.engine.pools").setLevel(logging.ERROR)


def fail(message: str) -> NoReturn:
    """End the command with exit code 1 and one line on standard error."""
    raise Failure(message)


@dataclass
class Node:
    """This node as the options describe it; read when a command needs it."""

    config: Path | None
    directory: Path | None
    snapshot: Path | None = None

    @cached_property
    def settings(self) -> Settings:
        """The settings; a wrong configuration ends the command with exit code 2."""
        try:
            settings = load(self.config, self.directory)
        except SettingsError as error:
            raise Misuse(str(error)) from None
        if self.snapshot is None:
            return settings
        if settings.stand_in:
            raise Misuse(
                f"--snapshot: {settings.source} describes a node that stands in for the host already"
            )
        return replace(settings, host_root=_host_root(self.snapshot))

    @property
    def host(self) -> Host:
        """The host that is looked at; one that stands in for this is there once its backends are loaded."""
        if self.settings.stand_in:
            _ = self.pools
        return Host(self.settings.host_root)

    def only_here(self, command: str) -> None:
        """End the command where it is asked about another machine than this."""
        if self.snapshot:
            raise Misuse(
                f"--snapshot: {command} is about this machine; unpack with replay, and name it as hostRoot"
            )

    @cached_property
    def pools(self) -> Pools:
        """The pools, probed now; what is in pods is known from the journal, as far as that can be read."""
        try:
            pools = Pools(self.settings.node, load_backends(self.settings))
        except SettingsError as error:
            raise Misuse(str(error)) from None
        try:
            records = self.records
        except Failure as failure:
            click.echo(f"dradriver: what is in pods is not shown: {plain(failure.message)}", err=True)
        else:
            recall(pools, records, Host(self.settings.host_root).boot_id() or "")
        quiet_pools()
        refresh_all(pools.all)
        return pools

    def journal(self) -> JournalView | None:
        """Open the journal for reading; None where no daemon has written one, or it is another machine's."""
        if self.snapshot and not self.directory:
            return None
        try:
            if not self.settings.journal.exists():
                return None
            return view_journal(self.settings.journal)
        except (JournalError, OSError) as error:
            fail(str(error))

    @cached_property
    def records(self) -> list[Record]:
        """The journalled claims, read once."""
        view = self.journal()
        if view is None:
            return []
        try:
            return view.records()
        finally:
            view.close()

    def holders(self) -> Mapping[tuple[str, str], list[Record]]:
        """Return (pool, device) -> the claims that have it."""
        found: dict[tuple[str, str], list[Record]] = {}
        for record in self.records:
            for device in record.devices:
                claims = found.setdefault((device.allocated.pool, device.allocated.device), [])
                if record not in claims:
                    claims.append(record)
        return found


def _host_root(snapshot: Path) -> Path:
    """Return the host root in a directory, or replay a snapshot into one that lasts as long as the command."""
    from dradriver.host.snapshot import SnapshotError, read_snapshot, replay

    if snapshot.is_dir():
        return snapshot
    try:
        found = read_snapshot(snapshot)
        scratch = tempfile.TemporaryDirectory(prefix="dradriver-")
        return replay(found, Path(click.get_current_context().find_root().with_resource(scratch)))
    except SnapshotError as error:
        fail(f"--snapshot: {error}")
    except OSError as error:
        fail(f"--snapshot: {snapshot}: {error.strerror}")


pass_node = click.make_pass_decorator(Node)
