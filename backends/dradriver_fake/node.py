"""A fake node, as the daemon asks for it: built from its facts once, and offered by the backends for its hardware.

CPUs and memory are served by the backends of the real ones, which read the node's tree.
"""

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec

from dradriver.backend import Backend, ConfigError, decode
from dradriver.model import shown
from dradriver_fake.facts import NodeFacts
from dradriver_fake.gpu_backend import FakeGpuBackend
from dradriver_fake.hardware import Hardware, write_json
from dradriver_fake.nic_backend import FakeNicBackend
from dradriver_fake.options import FakeOptions
from dradriver_fake.targets import Targets
from dradriver_fake.tree import build_tree
from dradriver_fake.yamlfile import parse_yaml

_FORMAT = b"1"
"""Counts changes of what is built from the same facts."""


def shipped() -> tuple[str, ...]:
    """Return the names of the nodes that come with dradriver."""
    names = (path.name for path in (resources.files("dradriver_fake") / "data" / "nodes").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def read_facts(data: bytes, path: str) -> NodeFacts:
    """Return the facts in a YAML file. Raises ConfigError."""
    return decode(NodeFacts, parse_yaml(data, path), path)


class FakeNode:
    """A node in place of this host."""

    backends: ClassVar[Mapping[str, type[Backend[Any, Any]]]] = {"gpu": FakeGpuBackend, "nic": FakeNicBackend}

    def __init__(self, options: FakeOptions, host_root: Path) -> None:
        self.options = options
        self.host_root = host_root

    @classmethod
    def of(cls, options: Mapping[str, Any], state: Path) -> Self:
        """Return the node that the options name; nothing is built yet. Raises ConfigError.

        state   the daemon's state directory
        """
        decoded = decode(FakeOptions, options, "fake")
        return cls(decoded, Path(decoded.directory) if decoded.directory else state / "hardware")

    def build(self) -> None:
        """Make the directory of the hardware, unless it is there. Raises ConfigError and OSError.

        One that is there is that of the same node, or it is refused: what is in it may be in use.
        """
        name, data = self._source()
        digest = hashlib.sha256(_FORMAT + data).hexdigest()
        hardware = Hardware(self.host_root)
        if not self._is_there(hardware, digest):
            self._build(read_facts(data, f"fake.node: {name}"), digest)
        self._check_modes(hardware.facts)
        self._check_faults(hardware.facts)
        write_json(hardware.directory / "options.json", msgspec.to_builtins(self.options))

    def _source(self) -> tuple[str, bytes]:
        """Return the name of the facts' file, and what is in it."""
        node = self.options.node
        if node.startswith("/"):
            try:
                return node, Path(node).read_bytes()
            except (OSError, ValueError) as error:
                raise ConfigError("fake.node", f"{shown(node)} cannot be read: {error}") from None
        if node not in shipped():
            raise ConfigError(
                "fake.node",
                f"{shown(node)} is neither an absolute path nor one of {', '.join(shipped())}",
            )
        return node, (resources.files("dradriver_fake") / "data" / "nodes" / f"{node}.yaml").read_bytes()

    def _is_there(self, hardware: Hardware, digest: str) -> bool:
        try:
            found = json.loads((hardware.directory / "node.json").read_bytes())
        except FileNotFoundError:
            if self.host_root.exists() and any(self.host_root.iterdir()):
                raise ConfigError(
                    "fake.directory", f"{self.host_root} holds something else: an empty one is expected"
                ) from None
            return False
        except ValueError:
            found = {}
        if found.get("digest") != digest:
            raise ConfigError(
                "fake.directory",
                f"{self.host_root} is the hardware of another node ({shown(found.get('node', 'unknown'))}), or of "
                "an earlier state of its facts: end its claims, then remove it or name another",
            )
        return True

    def _build(self, facts: NodeFacts, digest: str) -> None:
        """Build beside its place and rename, so that the hardware is there whole or not at all."""
        self.host_root.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{self.host_root.name}.", dir=self.host_root.parent))
        work.chmod(0o755)
        try:
            build_tree(work, facts)
            directory = Hardware(work).directory
            for kind, things in (("gpus", facts.gpus), ("nics", facts.network)):
                for thing in things:
                    (directory / kind / thing.name).mkdir(parents=True)
                (directory / kind).mkdir(parents=True, exist_ok=True)
            (directory / "driver").mkdir()
            (directory / "driver" / "version").write_text("580.95.05\n")
            (directory / "driver" / "libfake-ml.so.1").write_text(
                "This stands for a library of the driver.\n"
            )
            body = {"node": facts.node, "digest": digest, "facts": msgspec.to_builtins(facts)}
            write_json(directory / "node.json", body)
            with contextlib.suppress(FileNotFoundError):
                self.host_root.rmdir()
            work.rename(self.host_root)
        except OSError:
            shutil.rmtree(work, ignore_errors=True)
            if not (Hardware(self.host_root).directory / "node.json").exists():
                raise  # else another process was quicker

    def _check_modes(self, facts: NodeFacts) -> None:
        for field, modes, names in (
            ("gpuModes", self.options.gpu_modes, [gpu.name for gpu in facts.gpus]),
            ("nicModes", self.options.nic_modes, [nic.name for nic in facts.nics]),
        ):
            for name in modes:
                if name not in names:
                    raise ConfigError(
                        f"fake.{field}", f"{shown(name)} is none of {', '.join(names) or 'none'}"
                    )

    def _check_faults(self, facts: NodeFacts) -> None:
        objections = Targets.of(facts, self.options).objections(self.options.faults)
        for index, field, reason in objections:
            raise ConfigError(f"fake.faults[{index}].{field}", reason)
