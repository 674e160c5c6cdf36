"""`dradriver kubelet`: a small kubelet for debugging any DRA driver on this machine."""

import json
import os
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from dradriver.claims import ClaimError, DirectoryClaims, claim_ref, read_claim
from dradriver.cli.context import Misuse, Node, fail, pass_node
from dradriver.cli.lookup import fail_claim, find_claim
from dradriver.cli.output import Output, output_option, print_table, show
from dradriver.cli.views import device_text
from dradriver.documents import read_documents
from dradriver.model import ClaimRef, PreparedDevice, Quantity
from dradriver.model.names import check_label, check_subdomain

MAX_SLICE_FILE = 8 << 20

if TYPE_CHECKING:
    from dradriver.sim.kubelet import Kubelet


@click.group()
@click.option(
    "--root",
    type=click.Path(path_type=Path, resolve_path=True),
    help="the kubelet's root directory  [default: that of the configuration]",
)
@click.pass_context
def kubelet(context: click.Context, root: Path | None) -> None:
    """Act as the kubelet: find DRA drivers, prepare and unprepare claims, watch health."""
    context.meta["root"] = root


@contextmanager
def _kubelet(node: Node) -> Iterator["Kubelet"]:
    from dradriver.sim.kubelet import Kubelet, KubeletError

    root = click.get_current_context().meta["root"] or node.settings.kubelet_root
    try:
        with Kubelet(root) as found:
            yield found
    except (KubeletError, OSError) as error:
        fail(str(error))


@kubelet.command()
@output_option
@pass_node
def plugins(node: Node, output: Output) -> None:
    """List the plugins whose registration sockets answer."""
    with _kubelet(node) as small:
        found = small.plugins()
    data: list[dict[str, Any]] = [
        {
            "name": plugin.name,
            "type": plugin.type,
            "endpoint": plugin.endpoint,
            "versions": list(plugin.versions),
            "registrationSocket": str(plugin.socket),
            **({"error": plugin.error} if plugin.error else {}),
        }
        for plugin in found
    ]
    rows = [
        [
            one["name"] or "-",
            one["type"] or "-",
            one["endpoint"] or one["registrationSocket"],
            "\n".join(one["versions"]) or one.get("error", "-"),
        ]
        for one in data
    ]
    empty = (
        f"no registration sockets in {small.registry} (does --dir or DRADRIVER_DIR name the right directory?)"
    )
    show(output, data, lambda: print_table(("NAME", "TYPE", "ENDPOINT", "VERSIONS"), rows, empty))


@kubelet.command()
@click.argument("claim", required=False)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="[DRIVER/]NAME[:CAPACITY=AMOUNT,...]",
    help="allocate a new claim to this published device (may be repeated)",
)
@click.option("--name", default="demo", show_default=True, help="name of the new claim")
@click.option("--namespace", default="default", show_default=True, help="namespace of the new claim")
@click.option(
    "--parameters",
    multiple=True,
    metavar="DRIVER=JSON",
    help="opaque configuration of the new claim for one driver (may be repeated)",
)
@output_option
@pass_node
def prepare(
    node: Node,
    claim: str | None,
    devices: Sequence[str],
    name: str,
    namespace: str,
    parameters: Sequence[str],
    output: Output,
) -> None:
    """Prepare CLAIM, or a new claim for the named devices, with every driver that is concerned.

    CLAIM is a file with an allocated ResourceClaim, or the name of one: at the API server where the configuration names
    one, else in the claims directory. A driver that runs without a cluster reads claims from that directory, so a
    file is put there, and taken away by unprepare.
    """
    if bool(claim) == bool(devices):
        raise Misuse("either CLAIM or --device is expected")
    if devices and node.settings.kubernetes:
        raise Misuse(
            "--device: the driver reads claims from the API server: name one that is there, or use dradriver sim"
        )
    made = None
    if claim:
        obj = find_claim(node, claim)
        ref, drivers = _drivers(claim, obj)
        if Path(claim).is_file() and node.settings.claims.is_dir() and not node.settings.kubernetes:
            made = _put(node, ref, obj)
            if made is None:
                _refuse_another(node, claim, ref, obj)
    else:
        obj, made = _new_claim(node, name, namespace, devices, parameters)
        ref, drivers = _drivers(f"{namespace}/{name}", obj)
    answers: dict[str, tuple[PreparedDevice, ...] | str] = {}
    with _kubelet(node) as small:
        for driver in drivers:
            answers[driver] = small.prepare(driver, [ref])[ref.uid]
    if made and all(isinstance(answer, str) for answer in answers.values()):
        made.unlink(missing_ok=True)
    consumed = {
        (result.pool, result.device, result.share_id): result.consumed
        for result in read_claim(obj, ref).results
    }
    data = [_prepared_view(node, ref, driver, answer, consumed) for driver, answer in answers.items()]
    show(output, data, lambda: _prepared_table(ref, data))
    if any(isinstance(answer, str) for answer in answers.values()):
        raise SystemExit(1)


def _new_claim(
    node: Node, name: str, namespace: str, devices: Sequence[str], parameters: Sequence[str]
) -> tuple[dict[str, Any], Path]:
    from dradriver.sim.allocate import AllocationError, Wish, allocate

    try:
        check_subdomain(name, "claim name")
        check_label(namespace, "namespace")
        wishes = [Wish.parse(device) for device in devices]
        configs = [_parameters(text) for text in parameters]
        made = allocate(name, namespace, wishes, _published(node), configs)
    except (AllocationError, ValueError) as error:
        fail(str(error))
    path = _put(node, claim_ref(made), made)
    if path is None:
        fail(f"claim {namespace}/{name} exists already: unprepare it, or choose another --name")
    return made, path


def _put(node: Node, ref: ClaimRef, obj: Mapping[str, Any]) -> Path | None:
    """Put a claim into the claims directory; return its file, or None where the name is taken there."""
    from dradriver.sim.allocate import MADE

    try:
        check_subdomain(ref.name, "claim name")
        check_label(ref.namespace, "namespace")
    except ValueError as error:
        fail(str(error))
    directory = node.settings.claims
    if _kept(node, ref) is not None:
        return None
    metadata = obj["metadata"] | {"annotations": (obj["metadata"].get("annotations") or {}) | {MADE: "true"}}
    path = directory / f"{ref.namespace}.{ref.name}.yaml"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(yaml.safe_dump({**obj, "metadata": metadata}, sort_keys=False))
        temporary.rename(path)
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    return path


def _kept(node: Node, ref: ClaimRef) -> dict[str, Any] | None:
    """Return the claim of that name in the claims directory, which is the one that the driver reads."""
    claims = DirectoryClaims(node.settings.claims).all()
    return next((obj for of, obj in claims if (of.namespace, of.name) == (ref.namespace, ref.name)), None)


def _refuse_another(node: Node, text: str, ref: ClaimRef, obj: Mapping[str, Any]) -> None:
    """Refuse a file whose claim is in the claims directory with another allocation: the driver would take that."""

    def essence(of: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        return of["metadata"].get("uid"), of.get("spec"), (of.get("status") or {}).get("allocation")

    kept = _kept(node, ref)
    if kept is not None and essence(kept) != essence(obj):
        fail(
            f"{text}: {node.settings.claims} has another claim {ref}, by which the driver goes: unprepare that "
            f"({ref.namespace}/{ref.name}), or change it there"
        )


def _parameters(text: str) -> tuple[str, Mapping[str, Any]]:
    driver, equals, value = text.partition("=")
    try:
        fields = json.loads(value) if equals else None
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise Misuse(f"--parameters {text}: DRIVER=JSON object is expected")
    return driver, fields


def _published(node: Node) -> list[Mapping[str, Any]]:
    """Return the slice specs that the daemon keeps as files."""
    found: list[Mapping[str, Any]] = []
    for path in sorted(node.settings.slices.glob("*.yaml")):
        try:
            bodies = read_documents(path, MAX_SLICE_FILE)
        except (OSError, ValueError) as error:
            fail(f"{path}: {error}")
        found += [body["spec"] for body in bodies if isinstance(body, dict) and "spec" in body]
    if not found:
        fail(f"no slices in {node.settings.slices}: is `dradriver run` at work there?")
    return found


def _drivers(text: str, obj: Any) -> tuple[ClaimRef, list[str]]:
    try:
        ref = claim_ref(obj)
        results = read_claim(obj, ref).results
    except ClaimError as error:
        fail_claim(text, obj, error)
    drivers = list(dict.fromkeys(result.driver for result in results))
    if not drivers:
        fail(f"claim {ref} has no allocated devices")
    return ref, drivers


def _prepared_view(
    node: Node,
    ref: ClaimRef,
    driver: str,
    answer: tuple[PreparedDevice, ...] | str,
    consumed: Mapping[tuple[str, str, str | None], Mapping[str, Quantity]],
) -> dict[str, Any]:
    if isinstance(answer, str):
        return {"driver": driver, "claim": ref.uid, "error": answer}
    return {
        "driver": driver,
        "claim": ref.uid,
        "devices": [
            {
                "requests": list(device.requests),
                "pool": device.pool,
                "device": device.device,
                "consumed": {
                    name: str(amount)
                    for name, amount in consumed.get(
                        (device.pool, device.device, device.share_id), {}
                    ).items()
                },
                "cdiDeviceIDs": list(device.cdi_ids),
                **({"shareID": device.share_id} if device.share_id else {}),
            }
            for device in answer
        ],
        "cdiFiles": _cdi_files(node.settings.cdi, [name for device in answer for name in device.cdi_ids]),
    }


def _cdi_files(directory: Path, ids: Sequence[str]) -> list[str]:
    """Return the CDI files in the directory that define these qualified names."""
    kinds = {name.partition("=")[0] for name in ids}
    devices = {name.partition("=")[2] for name in ids}
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            spec = json.loads(path.read_text())
            if spec.get("kind") in kinds and devices & {device["name"] for device in spec["devices"]}:
                found.append(str(path))
        except (OSError, ValueError, AttributeError, LookupError, TypeError):
            continue
    return found


def _prepared_table(ref: ClaimRef, data: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for one in data:
        if "error" in one:
            rows.append([one["driver"], "-", f"error: {one['error']}"])
        rows += [
            [one["driver"], device_text(device), "\n".join(device["cdiDeviceIDs"])]
            for device in one.get("devices", ())
        ]
    click.echo(f"Claim {ref}")
    print_table(("DRIVER", "DEVICE", "CDI DEVICES"), rows, "no devices")
    for path in [path for one in data for path in one.get("cdiFiles", ())]:
        click.echo(f"CDI file {path}")


@kubelet.command()
@click.argument("claim")
@click.option("--driver", "only", multiple=True, help="only this driver; with --uid the driver to call")
@click.option("--uid", help="UID of a claim whose object is gone; CLAIM is then namespace/name")
@output_option
@pass_node
def unprepare(node: Node, claim: str, only: Sequence[str], uid: str | None, output: Output) -> None:
    """Unprepare CLAIM with every driver that is concerned. What prepare put into the claims directory is deleted."""
    if uid:
        namespace, _, name = claim.rpartition("/")
        ref, obj = ClaimRef(uid, namespace or "default", name), None
        drivers = list(only)
        if not drivers:
            raise Misuse("--uid needs --driver: only the claim tells the drivers")
    else:
        obj = find_claim(node, claim)
        ref, drivers = _drivers(claim, obj)
        drivers = [driver for driver in drivers if not only or driver in only]
    with _kubelet(node) as small:
        answers = {driver: small.unprepare(driver, [ref])[ref.uid] for driver in drivers}
    data = [
        {"driver": driver, "claim": ref.uid, **({"error": error} if error else {})}
        for driver, error in answers.items()
    ]
    rows = [[driver, f"error: {error}" if error else "unprepared"] for driver, error in answers.items()]
    show(output, data, lambda: print_table(("DRIVER", "RESULT"), rows, "no driver"))
    if any(answers.values()):
        raise SystemExit(1)
    if obj and not only and not node.settings.kubernetes:
        _forget(node, ref)


def _forget(node: Node, ref: ClaimRef) -> None:
    """Remove what `prepare` has put into the claims directory."""
    from dradriver.sim.allocate import MADE

    metadata = (_kept(node, ref) or {}).get("metadata") or {}
    if metadata.get("uid") == ref.uid and MADE in (metadata.get("annotations") or {}):
        (node.settings.claims / f"{ref.namespace}.{ref.name}.yaml").unlink(missing_ok=True)


@kubelet.command()
@click.argument("driver", required=False)
@click.option("--watch", is_flag=True, help="go on until interrupted")
@click.option("--version", type=click.Choice(["v1alpha1", "v1"]), default="v1alpha1", show_default=True)
@output_option
@pass_node
def health(node: Node, driver: str | None, watch: bool, version: str, output: Output) -> None:
    """Show the health that DRIVER reports, or every DRA driver that answers."""
    with _kubelet(node) as small:
        found = [one.name for one in small.plugins() if one.type == "DRAPlugin" and not one.error]
        names = [driver] if driver else sorted(set(found))
        if not names:
            fail(f"no DRA driver answers in {small.registry}")
        if watch:
            for view in _watched(small, names, version):
                _show_health([view], output)
        else:
            views = []
            for name in names:
                with small.watch_health(name, version) as stream:
                    views.append(_health_view(name, next(stream, {})))
            _show_health(views, output)


def _watched(small: "Kubelet", names: Sequence[str], version: str) -> Iterator[dict[str, Any]]:
    """Yield what the drivers send, until one of them ends its stream."""
    from dradriver.sim.kubelet import KubeletError

    arrived: queue.SimpleQueue[dict[str, Any] | KubeletError | None] = queue.SimpleQueue()

    def listen(name: str) -> None:
        try:
            with small.watch_health(name, version) as stream:
                for states in stream:
                    arrived.put(_health_view(name, states))
        except KubeletError as error:
            arrived.put(error)
        else:
            arrived.put(None)

    for name in names:
        threading.Thread(target=listen, args=(name,), daemon=True).start()
    last: dict[str, Any] = {}
    while (view := arrived.get()) is not None:
        if isinstance(view, KubeletError):
            raise view
        if view != last.get(view["driver"]):
            last[view["driver"]] = view
            yield view


def _health_view(driver: str, states: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    return {
        "driver": driver,
        "devices": [
            {
                "pool": pool,
                "device": device,
                "health": state.health.value,
                "message": state.message,
                "lastUpdated": datetime.fromtimestamp(state.updated, UTC).isoformat(),
                "timeoutSeconds": state.timeout,
            }
            for (pool, device), state in sorted(states.items())
        ],
    }


def _show_health(views: Sequence[Mapping[str, Any]], output: Output) -> None:
    rows = [
        [view["driver"], one["device"], one["health"], one["message"] or "-", one["lastUpdated"]]
        for view in views
        for one in view["devices"]
    ]
    columns = ("DRIVER", "DEVICE", "HEALTH", "MESSAGE", "SINCE")
    show(output, list(views), lambda: print_table(columns, rows, "no devices"))
