"""`dradriver sim`: the whole loop on this machine, without Kubernetes."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml
from click.core import ParameterSource

from dradriver.cli.context import Failure, Misuse, Node, pass_node
from dradriver.cli.output import Output, output_option, plain, print_table, show
from dradriver.cli.views import edits_text

if TYPE_CHECKING:
    from dradriver.sim.allocate import Wish
    from dradriver.sim.cluster import SimulatedCluster
    from dradriver.sim.loop import Loop, Outcome
    from dradriver.sim.manifests import Manifest

Choices = Mapping[tuple[str, str], Sequence["Wish"]]
Rows = Sequence[tuple[str, str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be done.

    directory   the directory to keep; None for one that is removed at the end
    config      the configuration file; None for one that describes the node `fake`
    wishes      devices of a claim of its own, where there are no manifests
    """

    directory: Path | None
    config: Path | None
    fake: str
    manifests: Sequence["Manifest"]
    choices: Choices
    wishes: Sequence["Wish"]
    version: str
    gates: Mapping[str, bool]
    port: int
    serve: bool
    output: Output

    def say(self, title: str, text: str, *, always: bool = False) -> None:
        """Show a line. Of one JSON document on standard output it must not become a part."""
        if self.output is Output.TABLE or always:
            click.echo(plain(f"{title:<11} {text}"), err=self.output is not Output.TABLE)

    def show_edits(self, rows: Rows) -> None:
        """Show what containers get."""
        if self.output is Output.TABLE:
            texts = [[container, name, edits_text(edits)] for container, name, edits in rows]
            print_table(("CONTAINER", "CDI DEVICE", "EDITS"), texts, "no container gets a device")


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
@click.option("--serve", is_flag=True, help="stay, with the pods up, until interrupted")
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

    --dir and --config count where they are written out: DRADRIVER_DIR and DRADRIVER_CONFIG are about the daemon of
    this machine, which stays out of this.
    """
    node.only_here("sim")
    directory, config = _written_out("directory", node.directory), _written_out("config", node.config)
    if devices and files:
        raise Misuse("--device is for a claim of its own: name the devices for FILES with --allocate")
    if allocate and not files:
        raise Misuse("--allocate is for the claims of FILES: use --device")
    if fake and config:
        raise Misuse("--node and --config: one of them says what node it is")
    choices = _choices(allocate)
    plan = _Plan(
        directory,
        config,
        fake or "small",
        _manifests(files, choices, serve=serve),
        choices,
        _wishes("--device", devices),
        version,
        _gates(gates, version),
        port,
        serve,
        output,
    )
    # As Ctrl-C: what was started is to be ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcome = _run(plan)
    show(output, outcome.view(), lambda: None)
    if outcome.problems:
        raise Failure("\n".join(filter(None, ["; ".join(outcome.problems), outcome.log])))


def _written_out(option: str, value: Path | None) -> Path | None:
    """Return the value of a global option, but not one that the environment gave it."""
    source = click.get_current_context().find_root().get_parameter_source(option)
    return value if source is ParameterSource.COMMANDLINE else None


def _manifests(files: Sequence[Path], choices: Choices, *, serve: bool) -> Sequence["Manifest"]:
    from dradriver.sim.manifests import ManifestError, check_choices, read_manifests

    try:
        found = read_manifests(files)
        check_choices(found, choices)
    except ManifestError as error:
        raise Misuse(str(error)) from None
    if found and not serve and not any(one.kind == "Pod" for one in found):
        raise Misuse(
            "there is no Pod in the FILES, so nothing to run: add one that uses the claims, or keep all by --serve"
        )
    return found


def _wishes(option: str, texts: Sequence[str]) -> list["Wish"]:
    from dradriver.sim.allocate import AllocationError, Wish

    try:
        return [Wish.parse(text) for text in texts]
    except AllocationError as error:
        raise Misuse(f"{option}: {error}") from None


def _gates(texts: Sequence[str], version: str) -> dict[str, bool]:
    from dradriver.sim.apiserver.rules import Gates

    gates = {}
    for text in texts:
        try:
            name, on = Gates.parse(text)
        except ValueError as error:
            raise Misuse(f"--gate {text}: {error}") from None
        gates[name] = on
    try:
        Gates.of(version, gates)
    except ValueError as error:
        raise Misuse(str(error)) from None
    return gates


def _choices(texts: Sequence[str]) -> Choices:
    choices: dict[tuple[str, str], list[Wish]] = {}
    for text in texts:
        place, equals, names = text.partition("=")
        claim, slash, request = place.partition("/")
        if not equals or not slash or not claim or not request or not names:
            raise Misuse(f"--allocate {text}: CLAIM/REQUEST=DEVICE is expected")
        wishes = _wishes(f"--allocate {text}", _devices(names))
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


def _run(plan: _Plan) -> "Outcome":
    """Do it in a directory of its own, or in the one that is named; return how it went."""
    from dradriver.sim.directory import BusyError, held
    from dradriver.sim.loop import Outcome

    if not plan.directory and "DRADRIVER_DIR" in os.environ:
        plan.say("Directory", "one of its own, removed at the end: DRADRIVER_DIR is not for sim, --dir is")
    try:
        # Short: socket paths have 107 bytes.
        with tempfile.TemporaryDirectory(prefix="dradriver-") as own:
            directory = plan.directory or Path(own)
            with held(directory):
                return _simulate(plan, directory, plan.config or _fake_config(directory, plan.fake))
    except BusyError as error:
        return Outcome(problems=[str(error)])
    except OSError as error:
        return Outcome(problems=[f"{error.filename or plan.directory}: {error.strerror or error}"])
    except KeyboardInterrupt:
        return Outcome(problems=["interrupted"])


def _fake_config(directory: Path, fake: str) -> Path:
    """Build the fake node, which the daemon finds then, and write the configuration that names it."""
    from dradriver.backend import ConfigError
    from dradriver.config import load
    from dradriver.config.standin import find_stand_in
    from dradriver.sim.cluster import NODE
    from dradriver.sim.directory import HEADER, check_config

    path = directory / "config.yaml"
    check_config(path)
    try:
        state = load(None, directory, {"NODE_NAME": NODE}).state
        find_stand_in("fake", {"node": fake}, state).build()
    except ConfigError as error:
        option = "--node" if error.path.startswith("fake.node") else f"--dir {directory}"
        raise Misuse(f"{option}: {error.reason}") from None
    path.write_text(HEADER + yaml.safe_dump({"node": NODE, "fake": {"node": fake}}, sort_keys=False))
    return path


def _simulate(plan: _Plan, directory: Path, config: Path) -> "Outcome":
    from dradriver.config import SettingsError
    from dradriver.kube import KubeError
    from dradriver.sim.allocate import AllocationError
    from dradriver.sim.cluster import SimulatedCluster, SimulationError
    from dradriver.sim.kubelet import KubeletError
    from dradriver.sim.loop import Loop
    from dradriver.sim.manifests import ManifestError

    try:
        cluster = SimulatedCluster(directory, config, plan.version, plan.gates, plan.port)
        loop = Loop(cluster, plan.say, plan.show_edits, _reduced(cluster.settings.state))
        try:
            with cluster:
                try:
                    _steps(plan, cluster, loop)
                except (KubeError, KubeletError, SimulationError) as error:
                    return loop.end(str(error))
                return loop.end()
        except (AllocationError, ManifestError, SimulationError, KubeError) as error:
            return loop.failed(str(error))
        except KeyboardInterrupt:
            return loop.failed("interrupted")
    except SettingsError as error:
        raise Misuse(str(error)) from None


def _steps(plan: _Plan, cluster: "SimulatedCluster", loop: "Loop") -> None:
    loop.begin()
    if plan.manifests:
        loop.run_pods(plan.manifests, plan.choices)
    else:
        loop.run_claim(plan.wishes)
    if plan.serve:
        _serve(plan, cluster)
    loop.bring_down()


def _reduced(state: Path) -> Callable[[], list[str] | None]:
    """Return what tells what the daemon could not publish, None while the daemon itself has not told."""
    from dradriver.daemon.report import FILE, read_report

    # What an earlier daemon told is not what this one does.
    (state / FILE).unlink(missing_ok=True)

    def reduced() -> list[str] | None:
        try:
            report = read_report(state)
        except (OSError, ValueError):
            return None
        if report is None or any(pool.trouble for pool in report.pools):
            return None
        return [
            f"pool {pool.pool}: {text}"
            for pool in report.pools
            for text in (*pool.reductions, *pool.left_out, *pool.warnings)
        ]

    return reduced


def _serve(plan: _Plan, cluster: "SimulatedCluster") -> None:
    """Stay until interrupted, or until the daemon is gone."""
    with contextlib.suppress(KeyboardInterrupt):
        command = f"KUBECONFIG={cluster.kubeconfig} kubectl get resourceslices"
        plan.say("Serving", f"{command}; Ctrl-C ends it", always=True)
        while cluster.alive():
            time.sleep(0.2)
