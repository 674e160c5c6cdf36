"""The command line."""

import sys


def main() -> None:
    """Run `dradriver`; the daemon's own command leaves the command line's packages out of the process."""
    if sys.argv[1:2] == ["run"]:
        from dradriver.daemon.__main__ import exit_at_once
        from dradriver.daemon.__main__ import main as run

        exit_at_once(run(sys.argv[2:]))
    from dradriver.cli.commands import cli

    cli(prog_name="dradriver")
