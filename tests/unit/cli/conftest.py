"""The command line is tested without what its developer has set up for himself."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the profiles, which does not exist yet."""
    monkeypatch.delenv("TALLYSTICK_BOOTSTRAP_SERVER", raising=False)
    monkeypatch.setenv("TALLYSTICK_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"
