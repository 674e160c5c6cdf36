"""The Kubernetes API server as a client sees it."""

from dradriver.kube.client import Client, Observed, default_user_agent, unobserved
from dradriver.kube.connection import SERVICE_ACCOUNT, TLS, Access, Connection, in_cluster
from dradriver.kube.errors import (
    Cause,
    KubeError,
    MalformedError,
    StatusError,
    StoppedError,
    UnreachableError,
)
from dradriver.kube.events import EventRecorder
from dradriver.kube.kubeconfig import connect, from_kubeconfig
from dradriver.kube.limits import spread
from dradriver.kube.listwatch import Handler, ListWatch
from dradriver.kube.paths import CLAIMS, EVENTS, NODES, SLICES, claim_path, node_path, slice_path
from dradriver.kube.waking import Successes, Waking

__all__ = [
    "CLAIMS",
    "EVENTS",
    "NODES",
    "SERVICE_ACCOUNT",
    "SLICES",
    "TLS",
    "Access",
    "Cause",
    "Client",
    "Connection",
    "EventRecorder",
    "Handler",
    "KubeError",
    "ListWatch",
    "MalformedError",
    "Observed",
    "StatusError",
    "StoppedError",
    "Successes",
    "UnreachableError",
    "Waking",
    "claim_path",
    "connect",
    "default_user_agent",
    "from_kubeconfig",
    "in_cluster",
    "node_path",
    "slice_path",
    "spread",
    "unobserved",
]
