"""The probes of the pod, against real daemons: alive, standing by, hanging, gone; and what the pod lets them do."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

import daemons
from chart import MANIFESTS, container, objects
from dradriver.kubelet import SocketPaths, unix_target
from dradriver.kubelet.probe import main
from dradriver_protos import dra_v1_pb2, dra_v1_pb2_grpc, registration_pb2, registration_pb2_grpc
from waiting import PATIENCE, eventually

CPU, MEMORY = "cpu.dradriver.io", "memory.dradriver.io"
DEPLOYED = container(objects([(MANIFESTS / "dradriver.yaml").read_text()]))


@pytest.fixture
def host() -> Iterator[daemons.Node]:
    with daemons.node() as node:
        yield node


def instance() -> str:
    return str(uuid.uuid4())


def probe(node: daemons.Node, uid: str, name: str = "livenessProbe") -> subprocess.CompletedProcess[str]:
    """Run a probe of the DaemonSet as the kubelet would, with the node's directory for the kubelet's."""
    python, *arguments = DEPLOYED[name]["exec"]["command"]
    assert python == "python"
    moved = [argument.replace("/var/lib/kubelet", str(node.kubelet_root)) for argument in arguments]
    assert moved != arguments
    return subprocess.run(
        [sys.executable, *moved],
        capture_output=True,
        text=True,
        timeout=DEPLOYED[name]["timeoutSeconds"],
        check=False,
        env={**os.environ, "POD_UID": uid},
    )


def test_a_daemon_that_works_is_alive_and_ready(host: daemons.Node) -> None:
    uid = instance()
    host.start(instance=uid)
    host.ready()
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        result = probe(host, uid, name)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_one_that_waits_for_another_to_end_is_alive_and_ready_too(host: daemons.Node) -> None:
    first, second = instance(), instance()
    host.start(instance=first)
    host.ready()
    host.start(instance=second)
    eventually(lambda: "standing by" in host.log(), "the second stands by")
    for uid in (first, second):
        for name in ("readinessProbe", "livenessProbe"):
            assert probe(host, uid, name).returncode == 0, host.log()


def test_a_daemon_that_is_gone_is_not_ready_though_another_is(host: daemons.Node) -> None:
    here, gone = instance(), instance()
    host.start(instance=here)
    host.ready()
    result = probe(host, gone, "readinessProbe")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(
        f"{CPU}: GetInfo at {host.kubelet_root}/plugins_registry/{CPU}-{gone}-reg.sock failed"
    )


def test_a_daemon_that_hangs_is_told_within_the_time_of_the_probe(host: daemons.Node) -> None:
    uid = instance()
    process = host.start(instance=uid)
    host.ready()
    process.send_signal(signal.SIGSTOP)
    result = probe(host, uid, "readinessProbe")
    assert result.returncode == 1
    assert "GetInfo" in result.stderr
    assert "DEADLINE_EXCEEDED" in result.stderr


class _Odd(registration_pb2_grpc.RegistrationServicer, dra_v1_pb2_grpc.DRAPluginServicer):
    """A driver that says what it is told to say, and refuses or mixes up calls."""

    def __init__(self, name: str, endpoint: str, prepare: str) -> None:
        self._info = registration_pb2.PluginInfo(type="DRAPlugin", name=name, endpoint=endpoint)
        self._prepare = prepare

    def GetInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        del request, context
        return self._info

    def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        del request
        if self._prepare == "refuses":
            context.abort(grpc.StatusCode.INTERNAL, "no")
        answer = dra_v1_pb2.NodePrepareResourcesResponse()
        answer.claims["unasked"].error = ""
        return answer


def odd(paths: SocketPaths, name: str, prepare: str) -> grpc.Server:
    paths.make_directories()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = _Odd(name, str(paths.service), prepare)
    registration_pb2_grpc.add_RegistrationServicer_to_server(servicer, server)
    dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(servicer, server)
    for socket in paths.sockets:
        server.add_insecure_port(unix_target(socket))
    server.start()
    return server


@pytest.mark.parametrize(
    ("name", "prepare", "said"),
    [
        (MEMORY, "", f"{CPU}: GetInfo answered 'DRAPlugin', '{MEMORY}'"),
        (CPU, "refuses", f"{CPU}: NodePrepareResources at"),
        (CPU, "mixes up", f"{CPU}: NodePrepareResources answered for claims that nobody asked for"),
    ],
    ids=["another driver", "refuses", "mixes up"],
)
def test_answers_that_are_wrong_are_told(
    host: daemons.Node, capsys: pytest.CaptureFixture[str], name: str, prepare: str, said: str
) -> None:
    host.kubelet_root.mkdir()
    server = odd(SocketPaths.of(CPU, host.kubelet_root), name, prepare)
    try:
        arguments = ["--root", str(host.kubelet_root), "--prepare", CPU]
        assert main(arguments, environment={}) == 1
        assert capsys.readouterr().err.startswith(said)
    finally:
        server.stop(None).wait()


def test_what_cannot_be_a_driver_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["No Driver"], environment={}) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "driver name" in line


def test_the_probe_is_light() -> None:
    """Its memory counts as the pod's: it must not carry the daemon, the command line or the Kubernetes client."""
    listed = subprocess.run(
        [sys.executable, "-c", "import dradriver.kubelet.probe, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()
    heavy = {"click", "rich", "kubernetes", "urllib3", "yaml", "sqlite3", "prometheus_client", "celpy"}
    heavy |= {"dradriver.daemon", "dradriver.engine", "dradriver.config", "dradriver.host", "dradriver.sim"}
    assert not heavy & set(listed)


# The container's limits


def confined(command: list[str]) -> list[str]:
    """Return a command that runs under the security context of the DaemonSet; skips where that cannot be tried.

    Capabilities and new privileges are taken away, and the root file system is read-only but for /dev/shm.
    """
    context = DEPLOYED["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["runAsUser"] == 0
    for tool in ("unshare", "setpriv", "mount"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    script = 'mount --make-rprivate / && mount -o remount,bind,ro / && exec "$@"'
    dropped = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    whole = ["unshare", "--mount", "sh", "-c", script, "sh", *dropped]
    tried = subprocess.run([*whole, "true"], capture_output=True, text=True, check=False, timeout=60)
    if os.geteuid() != 0 or tried.returncode:
        pytest.skip(f"nothing can be confined here: {tried.stderr.strip() or 'not root'}")
    return [*whole, *command]


def test_a_daemon_works_under_what_the_pod_may_do() -> None:
    """Without a capability, and with a root file system that it cannot write to."""
    memory = Path("/dev/shm")
    if not os.path.ismount(memory):
        pytest.skip("/dev/shm is no file system of its own")
    directory = memory / f"dra-{uuid.uuid4().hex[:8]}"
    uid = instance()
    node = daemons.Node(directory)
    (directory / "kubelet" / "plugins").mkdir(parents=True)
    (directory / "kubelet" / "plugins_registry").mkdir()
    command = [sys.executable, "-m", "dradriver.daemon", "--dir", str(directory)]
    command = confined(command)
    environment = {**os.environ, "NODE_NAME": "node-a", "POD_UID": uid, "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    lines: list[bytes] = []
    assert process.stderr
    reader = threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        eventually(lambda: len(node.published()) >= 2 or process.poll() is not None, "slices are published")
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "CapEff:\t0000000000000000\n" in status
        assert "NoNewPrivs:\t1\n" in status
        assert probe(node, uid).returncode == 0
        device = next(name for name, body in node.devices().items() if "cpu" in body.get("capacity", {}))
        claim = node.claim("confined", [daemons.cpu_result("1", device)])
        with daemons.kubelet(node) as kubelet:
            assert not isinstance(kubelet.prepare(CPU, [claim])[claim.uid], str)
            assert kubelet.unprepare(CPU, [claim]) == {claim.uid: None}
        daemons.terminate(process)
        reader.join(PATIENCE)
        assert process.returncode == 0, lines
        assert not [line for line in lines if b"WARNING" in line or b"ERROR" in line]
    finally:
        process.kill()
        process.wait()
        reader.join(PATIENCE)
        process.stderr.close()
        shutil.rmtree(directory)
