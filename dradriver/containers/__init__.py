"""The containers of a node as the runtime makes them: each gets what its claims promise, and the others the rest."""

from dradriver.containers.admission import Admission, AdmissionWithoutRuntime
from dradriver.containers.handler import Containers
from dradriver.containers.reservations import Reservations
from dradriver.containers.shared import Shared, SharedCPUs

__all__ = [
    "Admission",
    "AdmissionWithoutRuntime",
    "Containers",
    "Reservations",
    "Shared",
    "SharedCPUs",
]
