"""The ways in which a backend says no. The engine knows what to do about each."""


class BackendError(Exception):
    """Something about a backend's work went wrong; the message is for the person who reads the pod's event."""


class PlanError(BackendError):
    """The request cannot be honoured: a wrong or conflicting claim. Nothing is done, nothing is retried."""


class TransientError(BackendError):
    """The work may succeed soon (a busy device, a driver that is starting): retried within the call."""


class UnavailableError(BackendError):
    """The hardware cannot be read now, so nothing can be said about it. Recovery waits."""
