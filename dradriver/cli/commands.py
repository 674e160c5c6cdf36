"""`dradriver` and its commands that look at this node."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from dradriver.backend import BackendError
from dradriver.claims import ClaimError, claim_ref, read_claim
from dradriver.cli.context import Node, fail, pass_node
from dradriver.cli.kubelet import kubelet
from dradriver.cli.lookup import find_claim
from dradriver.cli.output import Output, output_option, print_table, show
from dradriver.cli.views import claim_rows, claim_view, device_rows, device_view, plan_tables, plan_view
from dradriver.engine import HeldError, dry_run
from dradriver.publish.manifest import manifest
from dradriver.slices import Pool as SlicePool
from dradriver.slices import pool_specs


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="DRADRIVER_CONFIG",
    show_envvar=True,
    help="configuration file",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, resolve_path=True),
    envvar="DRADRIVER_DIR",
    show_envvar=True,
    help="where `dradriver run --dir` keeps everything",
)
@click.version_option(package_name="dradriver")
@click.pass_context
def cli(context: click.Context, config: Path | None, directory: Path | None) -> None:
    """Give Kubernetes this node's devices through Dynamic Resource Allocation."""
    context.obj = Node(config, directory)


@cli.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_node
def run(node: Node, arguments: tuple[str, ...]) -> None:
    """Probe this node, publish its devices, and serve the kubelet."""
    from dradriver.daemon.__main__ import exit_at_once, main

    given = [
        *(["--config", str(node.config)] if node.config else []),
        *(["--dir", str(node.directory)] if node.directory else []),
    ]
    exit_at_once(main([*given, *arguments]))


@cli.command()
@output_option
@pass_node
def devices(node: Node, output: Output) -> None:
    """Show the devices of this node, probed now, and who has them."""
    pools, holders = node.pools, node.holders()
    views = [
        device_view(pool, device, holders.get((pool.name, device.name), []))
        for pool in pools.all
        for device in pool.snapshot.content.devices
    ]
    show(output, views, lambda: print_table(*device_rows(views)))
    broken = [f"pool {pool.name}: {pool.snapshot.error}" for pool in pools.all if pool.snapshot.error]
    if broken:
        fail("; ".join(broken))


@cli.command()
@output_option
@pass_node
def slices(node: Node, output: Output) -> None:
    """Show the ResourceSlices that this node publishes, from devices probed now."""
    manifests: list[dict[str, Any]] = []
    remarks: list[str] = []
    for pool in node.pools.all:
        named = SlicePool(pool.driver, node.settings.node, pool.name)
        made = pool_specs(named, pool.snapshot.content)
        manifests += [manifest(named, number, spec) for number, spec in enumerate(made.specs)]
        remarks += [f"pool {pool.name}: {text}" for text in (*map(str, made.left_out), *made.warnings)]
    data = {"apiVersion": "v1", "kind": "List", "items": manifests}
    rows = [
        [
            one["metadata"]["name"],
            one["spec"]["driver"],
            one["spec"]["pool"]["name"],
            str(len(one["spec"].get("devices", ()))),
            str(len(one["spec"].get("sharedCounters", ()))),
        ]
        for one in manifests
    ]
    columns = ("SLICE", "DRIVER", "POOL", "DEVICES", "COUNTER SETS")
    show(output, data, lambda: print_table(columns, rows, "no slices"))
    for remark in remarks:
        click.echo(f"dradriver: {remark}", err=True)


@cli.command()
@click.argument("claim")
@output_option
@pass_node
def plan(node: Node, claim: str, output: Output) -> None:
    """Show what preparing CLAIM would do on this node; nothing of it is done.

    CLAIM is a file with an allocated ResourceClaim, or the name of one in the claims directory.
    """
    obj = find_claim(node, claim)
    view = node.journal()
    try:
        decoded = read_claim(obj, claim_ref(obj))
        planned = [
            (driver, dry_run(decoded, driver, node.pools, view))
            for driver in node.pools.drivers
            if any(result.driver == driver for result in decoded.results)
        ]
    except (ClaimError, HeldError, BackendError) as error:
        fail(f"claim {claim}: {error}")
    finally:
        if view:
            view.close()
    if not planned:
        fail(f"claim {claim}: no device of drivers {', '.join(node.pools.drivers)} is allocated to it")
    data = plan_view(decoded, planned)
    show(output, data, lambda: plan_tables(data))


@cli.command()
@output_option
@pass_node
def claims(node: Node, output: Output) -> None:
    """Show the claims that are prepared on this node: since when, what they hold, and their steps."""
    views = [claim_view(record) for record in node.records()]
    show(output, views, lambda: print_table(*claim_rows(views, datetime.now(UTC))))


cli.add_command(kubelet)
