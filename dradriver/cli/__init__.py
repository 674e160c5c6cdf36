"""The command line."""

import sys
from collections.abc import Sequence

GLOBAL_OPTIONS = ("--config", "--dir")
"""Options of every command: they may stand before its name or behind it."""


def main() -> None:
    """Run `dradriver`; the daemon's own command leaves the command line's packages out of the process."""
    arguments = hoisted(sys.argv[1:])
    named = [argument for argument in arguments if argument == "run"]
    if arguments[-1:] == ["run"] and len(named) == 1 and "--snapshot" not in arguments:
        from dradriver.daemon.__main__ import exit_at_once
        from dradriver.daemon.__main__ import main as run

        exit_at_once(run(arguments[:-1]))
    from dradriver.cli.commands import cli

    cli(arguments, prog_name="dradriver")


def hoisted(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the global options in front of the command."""
    first: list[str] = []
    rest: list[str] = []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        if argument == "--":
            rest += [argument, *left]
            break
        if argument in GLOBAL_OPTIONS and left:
            first += [argument, left.pop(0)]
        elif argument.startswith(tuple(f"{option}=" for option in GLOBAL_OPTIONS)):
            first.append(argument)
        else:
            rest.append(argument)
    return first + rest
