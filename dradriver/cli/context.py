"""What the commands share: the settings, the pools of this node, and the errors that end a command."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import click

from dradriver.config import Settings, SettingsError, load, load_backends
from dradriver.engine import JournalError, JournalView, Pools, Record, refresh_all, view_journal


class Failure(click.ClickException):
    """A command that could not do what was asked."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        click.echo(f"dradriver: {self.message}", err=True, file=file)


class Misuse(Failure):
    """Options, arguments or a configuration that say nothing that could be done."""

    exit_code = 2


def fail(message: str) -> NoReturn:
    """End the command with exit code 1 and one line on standard error."""
    raise Failure(message)


@dataclass
class Node:
    """This node as the options describe it; read when a command needs it."""

    config: Path | None
    directory: Path | None

    @cached_property
    def settings(self) -> Settings:
        """The settings; a wrong configuration ends the command with exit code 2."""
        try:
            return load(self.config, self.directory)
        except SettingsError as error:
            raise Misuse(str(error)) from None

    @cached_property
    def pools(self) -> Pools:
        """The pools, probed now."""
        try:
            pools = Pools(self.settings.node, load_backends(self.settings))
        except SettingsError as error:
            raise Misuse(str(error)) from None
        refresh_all(pools.all)
        return pools

    def journal(self) -> JournalView | None:
        """Open the journal for reading; None where no daemon has written one."""
        try:
            if not self.settings.journal.exists():
                return None
            return view_journal(self.settings.journal)
        except (JournalError, OSError) as error:
            fail(str(error))

    def records(self) -> list[Record]:
        """Return the journalled claims."""
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
        for record in self.records():
            for device in record.devices:
                claims = found.setdefault((device.allocated.pool, device.allocated.device), [])
                if record not in claims:
                    claims.append(record)
        return found


pass_node = click.make_pass_decorator(Node)
