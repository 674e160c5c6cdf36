"""Settings that several claims hold at once."""

from pathlib import Path

import pytest

from dradriver.backend import BackendError
from dradriver.backend.settings import Settings
from dradriver.host import Host


def test_who_never_held_a_setting_leaves_it_though_nothing_can_be_written(tmp_path: Path) -> None:
    settings = Settings(Host(tmp_path), "/run/cards")
    changes: list[int] = []

    def take(holder: str) -> None:
        settings.take("mode", holder, 1, read=lambda: 0, change=changes.append)

    def put_back(before: int) -> bool:
        changes.append(before)
        return True

    take("first/0")
    blocked = tmp_path / "run/cards/settings/mode.new"
    blocked.mkdir()  # where a file would be written: as on a full disk
    with pytest.raises(BackendError, match=r"mode\.json: Is a directory \(option runDirectory\)"):
        take("second/0")
    assert settings.leave("mode", "second/0", put_back)
    assert changes == [1]
    assert settings.leave("mode", "first/0", put_back)
    assert changes == [1, 0]
