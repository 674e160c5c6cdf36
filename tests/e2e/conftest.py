"""How the tests of real daemons are given to the workers of a parallel run."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that share a daemon of their module run in one worker: each other would start a daemon of its own."""
    for item in items:
        fixtures = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
        if any(definition.scope == "module" for found in fixtures.values() for definition in found):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
