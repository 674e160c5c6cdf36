"""ResourceSlice manifests as YAML that people, this program and other programs read alike."""

import re
from typing import Annotated, Any

import msgspec
import yaml

from dradriver.slices import UNSOUND_GENERATION, Body, Pool, slice_object

try:
    from yaml import CSafeDumper as _BaseDumper
except ImportError:  # PyYAML can be built without libyaml, and is then slower.
    from yaml import SafeDumper as _BaseDumper  # type: ignore[assignment]

HEADER = "# Kept by dradriver: an edit is undone.\n"

# YAML readers differ in what they take for a number, a time or a truth value ("1e3", "0:40", "y"). Quoted is
# what is not plainly a word; words that the dumper knows as special ("null", "on") it quotes itself.
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9./_-]+").fullmatch


class _Dumper(_BaseDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write a body out at each place where it stands, without anchors."""
        del data
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None if _WORD(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class _Named(msgspec.Struct):
    name: str


class _PoolRef(msgspec.Struct, rename="camel"):
    name: str
    generation: Annotated[int, msgspec.Meta(ge=1, lt=UNSOUND_GENERATION)]
    resource_slice_count: int


class _Spec(msgspec.Struct, rename="camel"):
    driver: str
    node_name: str
    pool: _PoolRef
    devices: list[_Named] = []
    shared_counters: list[_Named] = []


class _Manifest(msgspec.Struct):
    spec: _Spec


def manifest(pool: Pool, number: int, spec: Body) -> Body:
    """Return the complete ResourceSlice object of one slice of a pool."""
    return slice_object({"name": pool.slice_name(number)}, spec)


def dumped(body: Body) -> bytes:
    """Return a manifest as YAML."""
    text = yaml.dump(body, Dumper=_Dumper, sort_keys=False, width=110)
    return (HEADER + text).encode()


def spec_of(body: object, pool: Pool) -> Body | None:
    """Return the spec of a manifest of that pool, sound enough to go on from; None for anything else."""
    try:
        spec = msgspec.convert(body, _Manifest).spec
    except (msgspec.ValidationError, RecursionError):
        return None
    if (spec.driver, spec.node_name, spec.pool.name) != (pool.driver, pool.node, pool.name):
        return None
    return body["spec"] if isinstance(body, dict) else None
