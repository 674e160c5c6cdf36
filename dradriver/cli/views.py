"""What the commands show: plain JSON types first, and tables made from them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from dradriver.backend import Phase
from dradriver.claims import Claim
from dradriver.cli.output import plain, print_table
from dradriver.engine import Planned, Pool, Record
from dradriver.engine.ledger import ONE
from dradriver.model import ClaimRef, Device
from dradriver.slices.encode import device_body

Table = tuple[Sequence[str], Sequence[Sequence[str]], str]


def device_view(pool: Pool, device: Device, holders: Sequence[Record]) -> dict[str, Any]:
    """Return a device as published, with its health and the claims that have it."""
    return {
        "driver": pool.driver,
        "pool": pool.name,
        **device_body(device),
        "health": device.health.value,
        **({"healthMessage": device.health_message} if device.health_message else {}),
        "claims": [reference(record.ref) for record in holders],
    }


def device_rows(views: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of devices."""
    rows = [
        [
            view["name"],
            view["driver"],
            "\n".join(f"{name}: {value['value']}" for name, value in view.get("capacity", {}).items()) or "-",
            "\n".join(f"{name}: {scalar(value)}" for name, value in view.get("attributes", {}).items()),
            view["health"] + (f"\n{view['healthMessage']}" if "healthMessage" in view else ""),
            "\n".join(f"{claim['namespace']}/{claim['name']}" for claim in view["claims"]) or "-",
        ]
        for view in views
    ]
    return ("DEVICE", "DRIVER", "CAPACITY", "ATTRIBUTES", "HEALTH", "CLAIMS"), rows, "no devices on this node"


def scalar(value: Mapping[str, Any]) -> str:
    """Return an attribute value of the API for people."""
    (found,) = value.values()
    if isinstance(found, list):
        return ", ".join(str(item) for item in found)
    return str(found).lower() if isinstance(found, bool) else str(found)


def reference(ref: ClaimRef) -> dict[str, str]:
    """Return the identity of a claim."""
    return {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}


def claim_view(record: Record) -> dict[str, Any]:
    """Return a journalled claim."""
    return {
        "claim": reference(record.ref),
        "driver": record.driver,
        "state": record.state.value,
        "since": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds"),
        "devices": [
            {
                "request": device.allocated.request,
                "pool": device.allocated.pool,
                "device": device.allocated.device,
                **({"shareID": device.allocated.share_id} if device.allocated.share_id else {}),
                "consumed": {name: str(amount) for name, amount in device.allocated.consumed.items()},
                "adminAccess": device.allocated.admin,
                "configs": device.configs,
                "containerEdits": device.edits,
            }
            for device in record.devices
        ],
        "holds": [{"unit": hold.unit, "amount": str(hold.amount)} for hold in record.holds],
        "steps": [
            {
                "phase": step.phase.value,
                "step": step.text,
                **(
                    {"state": step.state.value, "facts": step.facts}
                    if step.phase is not Phase.CONTAINER
                    else {}
                ),
            }
            for step in record.steps
        ],
        **_pod_view(record),
        **({"message": record.message} if record.message else {}),
    }


def _pod_view(record: Record) -> dict[str, Any]:
    """Return the pod whose sandbox a claim is in, if it is in one."""
    sandbox = record.sandbox
    return {"pod": {"uid": sandbox.pod, "sandbox": sandbox.id}} if sandbox and sandbox.id else {}


def print_claims(views: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Print claims for people: a line for each, and below it what it has, holds and does."""
    if not views:
        click.echo("no claims are prepared on this node")
    for view in views:
        claim = view["claim"]
        since = age(now - datetime.fromisoformat(view["since"]))
        click.echo(f"{claim['namespace']}/{claim['name']}  {view['driver']}  {view['state']}  since {since}")
        lines = [("uid", claim["uid"])]
        lines += [("device", device_text(device)) for device in view["devices"]]
        lines += [("holds", hold_text(hold)) for hold in view["holds"]]
        lines += [("step", step_text(step)) for step in view["steps"]]
        lines += [("in pod", view["pod"]["uid"])] if "pod" in view else []
        lines += [("waits", view["message"])] if "message" in view else []
        for word, text in lines:
            click.echo(f"  {word:<7} {plain(text)}")


def hold_text(hold: Mapping[str, Any]) -> str:
    """Return a ledger unit for people: what it is of, without the pool."""
    kind, _, rest = hold["unit"].partition(":")
    if kind == "plan":
        backend, _, held = rest.partition(":")
        return f"{backend} {held}"
    name = " ".join(rest.split(":")[1:])
    if kind == "device":
        return f"device {name}" if hold["amount"] == str(ONE) else f"share of device {name}"
    return f"{hold['amount']} {name}"


def step_text(step: Mapping[str, Any]) -> str:
    """Return a step and how far it is; those of containers are executed whenever a container is created."""
    how = step["state"] if "state" in step else f"at {step['phase']} creation"
    return f"{step['step']} ({how})"


def device_text(device: Mapping[str, Any]) -> str:
    """Return one device of a claim with what it consumes."""
    consumed = ", ".join(f"{name}={amount}" for name, amount in device["consumed"].items())
    return f"{device['device']} ({consumed})" if consumed else str(device["device"])


def age(duration: timedelta) -> str:
    """Return a duration as kubectl shows it: in its largest unit."""
    seconds = max(0, int(duration.total_seconds()))
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 60:
        return f"{minutes}m"
    return f"{hours}h" if hours < 48 else f"{days}d"


def plan_view(claim: Claim, planned: Sequence[tuple[str, Planned]]) -> dict[str, Any]:
    """Return what a claim comes to: per driver its devices, draws and steps."""
    return {
        "claim": reference(claim.ref),
        "drivers": [
            {
                "driver": driver,
                "devices": [
                    {
                        "request": device.allocated.request,
                        "pool": device.allocated.pool,
                        "device": device.allocated.device,
                        "containerEdits": device.edits.to_dict(),
                    }
                    for _, made in one.parts
                    for device in made.devices
                ],
                "holds": [
                    {"unit": draw.unit, "amount": str(draw.amount), "of": str(draw.limit)}
                    for draw in one.draws
                ],
                "steps": [
                    {"phase": step.phase.value, "step": step.describe()}
                    for _, made in one.parts
                    for step in made.steps
                ],
            }
            for driver, one in planned
        ],
    }


def plan_tables(view: Mapping[str, Any]) -> None:
    """Print a plan for people."""
    claim = view["claim"]
    click.echo(f"Claim {claim['namespace']}/{claim['name']} ({claim['uid']})")
    for driver in view["drivers"]:
        click.echo(f"\nDriver {driver['driver']}")
        rows = [
            [device["request"], device["device"], edits_text(device["containerEdits"])]
            for device in driver["devices"]
        ]
        print_table(("REQUEST", "DEVICE", "CONTAINER EDITS"), rows, "")
        click.echo()
        holds = [[hold_text(hold), hold["of"]] for hold in driver["holds"]]
        print_table(("HOLDS", "OF"), holds, "holds nothing")
        click.echo()
        steps = [[step["phase"], step["step"]] for step in driver["steps"]]
        print_table(("PHASE", "STEP"), steps, "no steps")


def edits_text(edits: Mapping[str, Any]) -> str:
    """Return container edits, one a line."""
    lines = list(edits.get("env", ()))
    lines += [f"device {node['path']}" for node in edits.get("deviceNodes", ())]
    lines += [f"mount {mount['hostPath']} at {mount['containerPath']}" for mount in edits.get("mounts", ())]
    lines += [f"hook {hook['hookName']} {hook['path']}" for hook in edits.get("hooks", ())]
    lines += [f"interface {net['hostInterfaceName']}" for net in edits.get("netDevices", ())]
    known = {"env", "deviceNodes", "mounts", "hooks", "netDevices"}
    return "\n".join([*lines, *(name for name in edits if name not in known)]) or "-"
