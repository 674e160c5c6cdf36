"""The configuration: one YAML file, a few flags, and the facts that a DaemonSet puts into the environment."""

from dradriver.config.backends import load_backends
from dradriver.config.load import Settings, SettingsError, load
from dradriver.config.types import Config, DriverConfig, Kubernetes, Log, Metrics, Standalone

__all__ = [
    "Config",
    "DriverConfig",
    "Kubernetes",
    "Log",
    "Metrics",
    "Settings",
    "SettingsError",
    "Standalone",
    "load",
    "load_backends",
]
