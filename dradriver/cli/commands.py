"""`dradriver` and its commands that look at this node."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from dradriver.backend import BackendError
from dradriver.claims import ClaimError, claim_ref, read_claim
from dradriver.cli.context import Node, fail, pass_node
from dradriver.cli.inspect import check, replay, snapshot, topology
from dradriver.cli.kubelet import kubelet
from dradriver.cli.lookup import fail_claim, find_claim
from dradriver.cli.output import Output, output_option, plain, print_table, show
from dradriver.cli.sim import sim
from dradriver.cli.views import claim_view, device_rows, device_view, plan_tables, plan_view, print_claims
from dradriver.engine import HeldError, dry_run
from dradriver.publish.manifest import manifest
from dradriver.slices import Pool as SlicePool
from dradriver.slices import PoolSpecs, pool_specs


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
@click.option(
    "--snapshot",
    type=click.Path(path_type=Path, resolve_path=True, exists=True),
    help="look at the host in this file of `dradriver snapshot`, or below this directory",
)
@click.version_option(package_name="dradriver")
@click.pass_context
def cli(context: click.Context, config: Path | None, directory: Path | None, snapshot: Path | None) -> None:
    """Give Kubernetes this node's devices through Dynamic Resource Allocation."""
    context.obj = Node(config, directory, snapshot)


@cli.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_node
def run(node: Node, arguments: tuple[str, ...]) -> None:
    """Probe this node, publish its devices, and serve the kubelet."""
    from dradriver.daemon.__main__ import exit_at_once, main

    node.only_here("run")
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
    holders, pools = node.holders(), node.pools
    views = [
        device_view(pool, device, holders.get((pool.name, device.name), []))
        for pool in pools.all
        for device in pool.snapshot.content.devices
    ]
    show(output, views, lambda: print_table(*device_rows(views)))
    for pool, (_, _, remarks) in zip(pools.all, _published(node), strict=True):
        _remark(f"pool {pool.name}: {note}" for note in pool.snapshot.content.notes)
        _remark(remarks)
    broken = _unread(node)
    if broken:
        fail("; ".join(broken))


def _unread(node: Node) -> list[str]:
    """Return why pools cannot be read now."""
    return [f"pool {pool.name}: {pool.snapshot.error}" for pool in node.pools.all if pool.snapshot.error]


def _published(node: Node) -> Iterator[tuple[SlicePool, PoolSpecs, list[str]]]:
    """Yield each pool's slices, and what is to be said of what they leave out."""
    for pool in node.pools.all:
        named = SlicePool(pool.driver, node.settings.node, pool.name)
        made = pool_specs(named, pool.snapshot.content)
        texts = (*pool.snapshot.content.warnings, *map(str, made.left_out), *made.warnings)
        yield named, made, [f"pool {pool.name}: {text}" for text in texts]


def _remark(remarks: Iterable[str]) -> None:
    for remark in remarks:
        click.echo(f"dradriver: {plain(remark)}", err=True)


@cli.command()
@output_option
@pass_node
def slices(node: Node, output: Output) -> None:
    """Show the ResourceSlices that this node publishes, from devices probed now."""
    published = list(_published(node))
    manifests = [manifest(pool, n, spec) for pool, made, _ in published for n, spec in enumerate(made.specs)]
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
    for _, _, remarks in published:
        _remark(remarks)
    _remark(_unread(node))


@cli.command()
@click.argument("claim")
@output_option
@pass_node
def plan(node: Node, claim: str, output: Output) -> None:
    """Show what preparing CLAIM would do on this node; nothing of it is done.

    CLAIM is a file with an allocated ResourceClaim, or the name of one: at the API server where the configuration names
    one, else in the claims directory.
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
        fail_claim(claim, obj, error)
    finally:
        if view:
            view.close()
    foreign = sorted({result.driver for result in decoded.results} - set(node.pools.drivers))
    if planned and foreign:
        _remark([f"not planned, since they are other drivers': {', '.join(foreign)}"])
    if not planned:
        fail(f"claim {claim}: no device of drivers {', '.join(node.pools.drivers)} is allocated to it")
    data = plan_view(decoded, planned)
    show(output, data, lambda: plan_tables(data))


@cli.command()
@output_option
@pass_node
def claims(node: Node, output: Output) -> None:
    """Show the claims that are prepared on this node: since when, what they hold, and their steps."""
    views = [claim_view(record) for record in node.records]
    show(output, views, lambda: print_claims(views, datetime.now(UTC)))


cli.add_command(kubelet)
cli.add_command(topology)
cli.add_command(check)
cli.add_command(snapshot)
cli.add_command(replay)
cli.add_command(sim)
