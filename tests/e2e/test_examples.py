"""Every example does what its README says, line by line as it stands there."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from commandline import dradriver

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/README.md"))
COMMAND = re.compile(r"^    dradriver (sim .*)$", re.MULTILINE)


def run(line: str) -> subprocess.CompletedProcess[str]:
    """Run the command of a README, from where the README says."""
    return dradriver(*shlex.split(line), "-o", "json", directory=ROOT)


def test_every_example_is_in_the_list() -> None:
    listed = set(
        re.findall(r"^\| \[([\w-]+)\]\(\1\)", (ROOT / "examples/README.md").read_text(), re.MULTILINE)
    )
    assert listed == {path.name for path in (ROOT / "examples").iterdir() if path.is_dir()}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs_as_its_readme_says(example: Path) -> None:
    commands = COMMAND.findall((example / "README.md").read_text())
    assert commands
    for command in commands:
        done = run(command)
        assert done.returncode == 0, done.stderr
        outcome = json.loads(done.stdout)
        assert outcome["problems"] == []
        assert outcome["warnings"] == []
        assert outcome["claims"], "a claim was allocated"
        assert all(one["cdiDevices"] for one in outcome["containers"]), "each container gets a device"


def test_a_device_that_is_not_there_ends_in_a_clear_error() -> None:
    manifests = ["deployments/manifests/deviceclasses.yaml", "examples/exclusive-cpus"]
    done = run(f"sim --node small {' '.join(manifests)} --allocate cpus/cpus=cpu-numa-7")
    assert done.returncode == 1
    assert "claim 'cpus': device 'cpu-numa-7' is not published; nearest of 21: cpu-numa-0" in done.stderr
