"""Showing results: tables for people, JSON and YAML for programs."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import click
import yaml

F = TypeVar("F", bound=Callable[..., Any])


class Output(Enum):
    """The forms of output."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def output_option(command: F) -> F:
    """Give a command the option `-o`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([form.value for form in Output]),
        default=Output.TABLE.value,
        show_default=True,
        callback=lambda _context, _parameter, value: Output(value),
        help="form of the output",
    )(command)


def show(form: Output, data: Any, table: Callable[[], None]) -> None:
    """Print `data` (plain JSON types) as asked; `table` prints it for people."""
    if form is Output.JSON:
        click.echo(json.dumps(data, indent=2))
    elif form is Output.YAML:
        click.echo(yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120), nl=False)
    else:
        table()


class _Dumper(yaml.SafeDumper):
    """Writes the same value twice where it stands twice: anchors are for no reader of ours."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """Print a table, or `empty` where it has no rows. Off a terminal nothing is cut to its width."""
    if not rows:
        click.echo(empty)
        return
    from rich.table import Table

    terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=not terminal)
    for row in rows:
        table.add_row(*(plain(cell) for cell in row))
    _print(table)


@dataclass(slots=True)
class Branch:
    """One line of a tree, and what is below it."""

    label: str
    below: list["Branch"] = field(default_factory=list)

    def add(self, label: str) -> "Branch":
        """Add a line below this one, and return it."""
        made = Branch(label)
        self.below.append(made)
        return made


def print_tree(root: Branch) -> None:
    """Print a tree. Off a terminal nothing is cut to its width."""
    from rich.text import Text
    from rich.tree import Tree

    def grown(branch: Branch, tree: Tree) -> Tree:
        for child in branch.below:
            grown(child, tree.add(Text(plain(child.label))))
        return tree

    _print(grown(root, Tree(Text(plain(root.label)))))


def _print(renderable: Any) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 10_000
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(renderable)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def plain(text: str) -> str:
    """Return text that cannot steer a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
