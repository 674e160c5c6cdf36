"""The stand-in API server as a process of its own: how others start it, and how it ends."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import urllib3

COMMAND = [sys.executable, "-m", "dradriver.sim.apiserver"]
SECONDS = 60


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_and_ends_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    config = tmp_path / "kubeconfig"
    options = ["--version", "1.35", "--gate", "DRADeviceTaints=true", "--kubeconfig", str(config)]
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert process.stdout.readline().strip() == str(config)
        try:
            assert json.loads(config.read_text())["clusters"][0]["cluster"]["server"] == url
            assert config.stat().st_mode & 0o077 == 0
            with urllib3.PoolManager() as pool:
                answer = pool.request("GET", f"{url}/version")
                assert answer.json()["minor"] == "35"
                watch = pool.request("GET", f"{url}/api/v1/nodes?watch=true", preload_content=False)
                process.send_signal(number)
                assert process.wait(SECONDS) == 0
                watch.close()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--version", "1.20"], "1.34 to 1.37"),
        (["--gate", "NoSuchGate=true"], "NoSuchGate"),
        (["--gate", "DRADeviceTaints"], "NAME=true"),
        (["--kubeconfig", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_it_says_why_it_cannot_start(options: list[str], said: str) -> None:
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode in {1, 2}
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    del tmp_path
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip().rpartition(":")[2]
        try:
            second = subprocess.run(
                [*COMMAND, "--port", port], capture_output=True, text=True, timeout=SECONDS, check=False
            )
            assert second.returncode == 1
            assert "in use" in second.stderr
        finally:
            process.terminate()
            assert process.wait(SECONDS) == 0
