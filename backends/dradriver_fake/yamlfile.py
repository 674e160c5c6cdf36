"""YAML files that people write: one document, and no key twice."""

from typing import Any

import yaml

from dradriver.backend import ConfigError
from dradriver.model import shown

MAX_BYTES = 4 << 20


class _UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML without the silent rule that the last of two equal keys wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in seen:
                what = "stands twice" if isinstance(key, str) else "is not a string"
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {shown(key)} {what}", node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse_yaml(data: bytes, path: str) -> Any:
    """Return the one document in `data`; None where it is empty. Raises ConfigError that names `path`."""
    if len(data) > MAX_BYTES:
        raise ConfigError(path, f"{len(data)} bytes: at most {MAX_BYTES} are read")
    try:
        return yaml.load(data, Loader=_UniqueKeys)  # noqa: S506 - a subclass of the safe loader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(path, f"not valid YAML: {' '.join(str(error).split())[:300]}") from None
    except RecursionError:
        raise ConfigError(path, "not valid YAML: nested too deeply") from None
