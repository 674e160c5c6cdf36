"""Network cards: moved into pods as they are or as virtual functions, and shared by bandwidth."""

from dradriver_nic.backend import NicBackend
from dradriver_nic.config import NicConfig
from dradriver_nic.options import NicOptions

__all__ = ["NicBackend", "NicConfig", "NicOptions"]
