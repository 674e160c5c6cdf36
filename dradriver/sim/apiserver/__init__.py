"""A stand-in for the Kubernetes API server: in memory, over real HTTP, with faults on command.

It serves what a DRA driver and its users need of resource.k8s.io, core and a few other groups, as an API server of
the chosen version would, to real clients: kubectl too. Nothing is scheduled, and no pod runs.
"""

from dradriver.sim.apiserver.errors import ApiError
from dradriver.sim.apiserver.requests import LoggedRequest
from dradriver.sim.apiserver.rest import User
from dradriver.sim.apiserver.server import ApiServer

__all__ = ["ApiError", "ApiServer", "LoggedRequest", "User"]
