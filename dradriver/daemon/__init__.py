"""The daemon room: what puts the others together, and keeps them running."""

from dradriver.daemon.daemon import STOP_SECONDS, Daemon, make_directories
from dradriver.daemon.logs import set_up

__all__ = ["STOP_SECONDS", "Daemon", "make_directories", "set_up"]
