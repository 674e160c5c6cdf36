"""Options of the test run."""

import pytest
from hypothesis import HealthCheck, settings

# A machine that is busy makes no example wrong.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

pytest.register_assert_rewrite("crashes", "life", "reference", "wholenode")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --all."""
    parser.addoption(
        "--all",
        action="store_true",
        help="every crash point instead of some, and 10,000 random sequences instead of a few",
    )


@pytest.fixture(scope="session")
def everything(request: pytest.FixtureRequest) -> bool:
    """Whether nothing is left out to save time."""
    return bool(request.config.getoption("--all"))
