"""The configuration: one YAML file, a few flags, and the facts that a DaemonSet puts into the environment."""

from dradriver.config.backends import load_backends
from dradriver.config.load import Runtime, Settings, SettingsError, load
from dradriver.config.types import Config, DriverConfig, Kubernetes, Log, Metrics, Nri, Standalone

__all__ = [
    "Config",
    "DriverConfig",
    "Kubernetes",
    "Log",
    "Metrics",
    "Nri",
    "Runtime",
    "Settings",
    "SettingsError",
    "Standalone",
    "load",
    "load_backends",
]
