"""`dradriver sim`: the whole loop on this machine, without Kubernetes."""

import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from dradriver.cli.context import Failure, Misuse, Node, fail, pass_node
from dradriver.cli.output import Output, output_option, print_table, show
from dradriver.cli.views import edits_text

if TYPE_CHECKING:
    from dradriver.sim.allocate import Wish
    from dradriver.sim.cluster import SimulatedCluster
    from dradriver.sim.loop import Outcome

Choices = Mapping[tuple[str, str], Sequence["Wish"]]


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--node", "fake", metavar="NODE", help="a fake node, as dgx-h100 (docs/fake.md)  [default: small]"
)
@click.option(
    "--allocate",
    "allocate",
    multiple=True,
    metavar="CLAIM/REQUEST=DEVICE[,DEVICE...]",
    help="give these devices to a request of the FILES; CLAIM is the pod's name for it (may be repeated)",
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="[DRIVER/]NAME[:CAPACITY=AMOUNT,...]",
    help="without FILES: a device to claim (may be repeated)  [default: the first of each driver]",
)
@click.option("--kubernetes", "version", default="1.36", show_default=True, help="version of the API server")
@click.option(
    "--gate", "gates", multiple=True, metavar="NAME=true|false", help="a feature gate of it (may be repeated)"
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="port of it  [default: a free one]")
@click.option("--serve", is_flag=True, help="stay, for kubectl, until interrupted")
@output_option
@pass_node
def sim(
    node: Node,
    files: Sequence[Path],
    fake: str | None,
    allocate: Sequence[str],
    devices: Sequence[str],
    version: str,
    gates: Sequence[str],
    port: int,
    serve: bool,
    output: Output,
) -> None:
    """Show the whole loop without Kubernetes: publish, allocate, prepare, unprepare.

    A stand-in API server, a daemon on a fake node (or as --config says) and a small kubelet are started below --dir,
    or a directory that is removed at the end. A claim is allocated by the names of its devices, prepared, shown and
    unprepared; the exit code is 1 where anything is not as it should be.

    FILES are manifests, or directories of them, with DeviceClasses, claims, claim templates and pods. All are
    created, the pods brought up and down, with the devices that --allocate names.
    """
    node.only_here("sim")
    if bool(files) == bool(devices) and files:
        raise Misuse("--device is for a claim of its own: name the devices for FILES with --allocate")
    if allocate and not files:
        raise Misuse("--allocate is for the claims of FILES: use --device")
    if fake and node.config:
        raise Misuse("--node and --config: one of them says what node it is")
    choices = _choices(allocate)
    # As Ctrl-C: what was started is to be ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _directory(node) as directory:
        config = node.config or _fake_config(directory, fake or "small")
        outcome = _run(
            directory, config, files, choices, devices, version, _gates(gates), port, serve, output
        )
    show(output, outcome.view(), lambda: None)
    if outcome.problems:
        raise Failure("\n".join(["; ".join(outcome.problems), outcome.log]))


@contextmanager
def _directory(node: Node) -> Iterator[Path]:
    if node.directory:
        try:
            node.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            fail(f"{node.directory}: {error.strerror}")
        yield node.directory
        return
    # Short: socket paths have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="dradriver-") as name:
        yield Path(name)


def _fake_config(directory: Path, fake: str) -> Path:
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump({"fake": {"node": fake}}))
    return path


def _gates(texts: Sequence[str]) -> dict[str, bool]:
    gates = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or value.lower() not in {"true", "false"}:
            raise Misuse(f"--gate {text}: NAME=true or NAME=false is expected")
        gates[name] = value.lower() == "true"
    return gates


def _choices(texts: Sequence[str]) -> Choices:
    from dradriver.sim.allocate import AllocationError, Wish

    choices: dict[tuple[str, str], list[Wish]] = {}
    for text in texts:
        place, equals, names = text.partition("=")
        claim, slash, request = place.partition("/")
        if not equals or not slash or not claim or not request or not names:
            raise Misuse(f"--allocate {text}: CLAIM/REQUEST=DEVICE is expected")
        try:
            wishes = [Wish.parse(name) for name in _devices(names)]
        except AllocationError as error:
            raise Misuse(f"--allocate {text}: {error}") from None
        choices.setdefault((claim, request), []).extend(wishes)
    return choices


def _devices(text: str) -> list[str]:
    """Split a list of devices; `a:cpu=1,memory=2` is one device with two amounts."""
    devices: list[str] = []
    for part in text.split(","):
        if devices and "=" in part and ":" not in part:
            devices[-1] += f",{part}"
        else:
            devices.append(part)
    return devices


def _run(
    directory: Path,
    config: Path,
    files: Sequence[Path],
    choices: Choices,
    devices: Sequence[str],
    version: str,
    gates: Mapping[str, bool],
    port: int,
    serve: bool,
    output: Output,
) -> "Outcome":
    from dradriver.config import SettingsError
    from dradriver.kube import KubeError
    from dradriver.sim.allocate import AllocationError, Wish
    from dradriver.sim.cluster import SimulatedCluster, SimulationError
    from dradriver.sim.kubelet import KubeletError
    from dradriver.sim.loop import Loop, manifests

    def say(title: str, text: str, *, always: bool = False) -> None:
        """Show a line. Of one JSON document on standard output it must not become a part."""
        if output is Output.TABLE or always:
            click.echo(f"{title:<11} {text}", err=output is not Output.TABLE)

    def show_edits(rows: Sequence[tuple[str, str, Mapping[str, Any]]]) -> None:
        if output is Output.TABLE:
            texts = [[container, name, edits_text(edits)] for container, name, edits in rows]
            print_table(("CONTAINER", "CDI DEVICE", "EDITS"), texts, "no container gets a device")

    try:
        objects = manifests(files)
        wishes = [Wish.parse(device) for device in devices]
        with SimulatedCluster(directory, config, version, gates, port) as cluster:
            loop = Loop(cluster, say, show_edits)
            try:
                loop.begin()
                if objects:
                    loop.run_pods(objects, choices)
                else:
                    loop.run_claim(wishes)
            except (KubeError, KubeletError, SimulationError) as error:
                return loop.end(str(error))
            if serve:
                command = f"KUBECONFIG={cluster.kubeconfig} kubectl get resourceslices"
                say("Serving", f"{command}; Ctrl-C ends it", always=True)
                _serve(cluster)
            return loop.end()
    except (SettingsError, ValueError) as error:
        raise Misuse(str(error)) from None
    except (AllocationError, KubeError, KubeletError, SimulationError, OSError) as error:
        fail(str(error))


def _serve(cluster: "SimulatedCluster") -> None:
    """Stay until interrupted, or until the daemon is gone."""
    with contextlib.suppress(KeyboardInterrupt):
        while cluster.alive():
            time.sleep(0.2)
