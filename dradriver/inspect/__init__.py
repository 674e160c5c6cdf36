"""Looking inside: what this node has and who has it, and what is wrong with it. Nothing is changed.

Everything here returns plain data; `dradriver.cli` shows it.
"""

from dradriver.inspect.result import Check, Status, worst
from dradriver.inspect.topology import topology_view

__all__ = ["Check", "Status", "topology_view", "worst"]
