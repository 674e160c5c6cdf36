"""What the Kubernetes API server does to an object in front of its storage, as pure functions.

`decode`, `create` and `update` read, prune, default and validate the kinds of resource.k8s.io/v1 as the servers 1.34
to 1.37 do with given feature gates: fields that a version does not know or a gate does not allow are dropped, and what
breaks a rule is `Refused` with the server's code, reason, causes and texts. Other kinds have their metadata checked,
and are otherwise taken as they come. The oracle is what a real 1.36 server answered; where 1.34, 1.35 and 1.37 differ,
the rules are those of their sources.
"""

from dradriver.sim.apiserver.kinds import BY_NAME as KINDS
from dradriver.sim.apiserver.rules.body import Body, Number, RawObject
from dradriver.sim.apiserver.rules.claims import ADMIN_LABEL
from dradriver.sim.apiserver.rules.errors import Cause, Refused
from dradriver.sim.apiserver.rules.gates import Gates
from dradriver.sim.apiserver.rules.handling import Result, create, decode, update

__all__ = [
    "ADMIN_LABEL",
    "KINDS",
    "Body",
    "Cause",
    "Gates",
    "Number",
    "RawObject",
    "Refused",
    "Result",
    "create",
    "decode",
    "update",
]
