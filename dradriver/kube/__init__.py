"""The Kubernetes API server as a client sees it."""
