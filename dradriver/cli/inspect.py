"""`dradriver topology`, `check`, `snapshot` and `replay`: looking inside this node, and taking it elsewhere."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dradriver.cli.context import Node, fail, pass_node, quiet_pools
from dradriver.cli.output import Branch, Output, output_option, print_table, print_tree, show
from dradriver.config import Settings, SettingsError, load
from dradriver.host import CPUSet, read_pci, read_topology
from dradriver.host.cpuset import MAX_CPUS

View = Mapping[str, Any]

# PCI class codes, the longer ones first (pci.ids, "C" lines).
_CLASSES = {
    "0x0108": "NVMe",
    "0x0207": "InfiniBand",
    "0x0302": "3D controller",
    "0x01": "storage",
    "0x02": "network",
    "0x03": "display",
    "0x0b": "coprocessor",
    "0x12": "accelerator",
    "0x06": "bridge",
}


# A GPU has some 25 partitions that overlap; `dradriver devices` names them all.
_MOST_QUIET = 4


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="show every PCI function, bridges too")
@output_option
@pass_node
def topology(node: Node, everything: bool, output: Output) -> None:
    """Show this node as a tree: sockets, NUMA nodes, PCIe roots and switches, devices, and who has them."""
    from dradriver.inspect import topology_view

    records, pools = node.records, node.pools.all
    found, pci = read_topology(node.host), read_pci(node.host)
    view = {
        "node": node.settings.node,
        **topology_view(found, pci, pools, records, everything=everything),
    }
    show(output, view, lambda: _print_topology(view))


def _print_topology(view: View) -> None:
    root = Branch(view["node"])
    for socket in view["sockets"]:
        single = socket["id"] is not None
        name = f"socket {socket['id']}  CPUs {socket['cpus'] or 'none'}" if single else "of no single socket"
        branch = root.add(name)
        _add_devices(branch, socket["devices"])
        for numa in socket["numaNodes"]:
            _add_numa_node(branch, numa)
    elsewhere = view["elsewhere"]
    if elsewhere["devices"] or any(_is_worth_showing(one) for one in elsewhere["pcieRoots"]):
        branch = root.add("of no known NUMA node")
        _add_devices(branch, elsewhere["devices"])
        _add_roots(branch, elsewhere["pcieRoots"])
    if view["missing"]:
        branch = root.add("held by claims, and not there now")
        for missing in view["missing"]:
            _add_claims(branch.add(missing["device"]), missing["claims"])
    print_tree(root)
    for note in view["notes"]:
        click.echo(f"note: {note}")


def _add_numa_node(parent: Branch, numa: View) -> None:
    from dradriver.inspect.files import size_text

    name = f"NUMA node {numa['id']}" if numa["id"] is not None else "CPUs of no NUMA node"
    parts = [name]
    if numa.get("memoryBytes") is not None:
        parts.append(size_text(numa["memoryBytes"]) if numa["memoryBytes"] else "no memory")
    if "memoryOfGPU" in numa:
        parts.append(f"memory of GPU {numa['memoryOfGPU']}")
    branch = parent.add("  ".join(parts))
    if numa["cpus"]:
        branch.add(_cpus_text(numa))
    for pool in numa.get("hugePages", ()):
        branch.add(f"huge pages of {size_text(pool['sizeBytes'])}: {pool['free']} of {pool['total']} free")
    _add_devices(branch, numa["devices"])
    _add_roots(branch, numa["pcieRoots"])


def _cpus_text(numa: View) -> str:
    from dradriver.inspect.files import size_text

    kinds = ", ".join(f"{count} {kind}" for kind, count in numa.get("coreKinds", {}).items())
    text = f"{numa['cores']} cores{f' ({kinds})' if kinds else ''}, CPUs {numa['cpus']}"
    caches = numa["lastLevelCaches"]
    if len(caches) == 1:
        return f"{text}, L{caches[0]['level']} {size_text(caches[0]['sizeBytes'])}"
    if caches:
        sizes = {size_text(cache["sizeBytes"]) for cache in caches}
        lists = " ".join(f"[{cache['cpus']}]" for cache in caches)
        return f"{text}, {len(caches)} L{caches[0]['level']} of {' or '.join(sorted(sizes))}: {lists}"
    return text


def _is_worth_showing(root: View) -> bool:
    switches = any(switch["functions"] for switch in root["switches"])
    return bool(root["devices"] or root["functions"] or switches)


def _add_roots(parent: Branch, roots: Sequence[View]) -> None:
    for root in roots:
        if not _is_worth_showing(root):
            continue
        branch = parent.add(root["name"] or "PCI functions of no known root")
        _add_devices(branch, root["devices"])
        _add_functions(branch, root)
        for switch in root["switches"]:
            _add_functions(branch.add(f"switch {switch['address']}"), switch)


def _add_functions(parent: Branch, holder: View) -> None:
    for function in holder["functions"]:
        _add_devices(parent.add(_function_text(function)), function["devices"])
    if holder["otherFunctions"]:
        parent.add(f"and {holder['otherFunctions']} other functions")


def _function_text(function: View) -> str:
    code = function.get("class", "")
    kind = next((name for prefix, name in _CLASSES.items() if code.startswith(prefix)), code)
    ids = ":".join(function[key].removeprefix("0x") for key in ("vendor", "device") if key in function)
    parts = [function["address"], kind, f"[{ids}]" if ids else "", function.get("driver", "")]
    parts += [*function.get("net", ()), *function.get("infiniband", ())]
    if "linkSpeed" in function and "linkWidth" in function:
        parts.append(f"{function['linkSpeed'].removesuffix(' PCIe')} x{function['linkWidth']}")
    if "virtualFunctions" in function:
        parts.append(f"{function['virtualFunctions']} virtual functions")
    return "  ".join(part for part in parts if part)


def _add_devices(parent: Branch, devices: Sequence[View]) -> None:
    quiet = [device for device in devices if not device["claims"] and device["health"] == "Healthy"]
    many = len(quiet) > _MOST_QUIET
    for device in devices:
        if many and device in quiet:
            continue
        parts = [device["name"]]
        for name, amount in device["capacity"].items():
            taken = f"{amount['allocated']} of " if device["shared"] else ""
            parts.append(f"{name} {taken}{amount['value']}")
        if device["health"] != "Healthy":
            parts.append(f"{device['health']}: {device.get('healthMessage', '')}".rstrip(": "))
        _add_claims(parent.add("  ".join(parts)), device["claims"])
    if many:
        parent.add(f"{len(quiet)} devices that no claim has, as {quiet[0]['name']}")


def _add_claims(parent: Branch, claims: Sequence[View]) -> None:
    for claim in claims:
        amounts = ", ".join(f"{name} {amount}" for name, amount in claim["consumed"].items())
        parts = [f"{claim['namespace']}/{claim['name']}", amounts]
        parts.append(f"holds {_names_text(claim['holds'])}" if claim["holds"] else "")
        parts.append("admin access" if claim["adminAccess"] else "")
        parts.append(claim["state"] if claim["state"] != "prepared" else "")
        parent.add("  ".join(part for part in parts if part))


def _names_text(names: Sequence[str]) -> str:
    """Return names, numbers as ranges."""
    if all(name.isdecimal() and int(name) < MAX_CPUS for name in names):
        return str(CPUSet(map(int, names)))
    return ", ".join(names)


@click.command()
@output_option
@pass_node
def check(node: Node, output: Output) -> None:
    """Check this node: configuration, host, directories, sockets, journal, CDI, runtime, kubelet.

    Nothing is changed. The exit code is 1 if there is an error.
    """
    from dradriver.inspect import Status, worst
    from dradriver.inspect.checks import check_node

    node.only_here("check")
    settings: Settings | SettingsError
    try:
        settings = load(node.config, node.directory)
    except SettingsError as error:
        settings = error
    quiet_pools()
    checks = check_node(settings, own_directory=node.directory is not None)
    status = worst(checks)
    data = {"status": status.value, "checks": [one.view() for one in checks]}
    rows = [
        [one.name, one.status.value.upper(), f"{one.seen}\n  mend: {one.mend}" if one.mend else one.seen]
        for one in checks
    ]
    show(output, data, lambda: print_table(("CHECK", "STATUS", "SEEN"), rows, ""))
    if status is Status.ERROR:
        raise SystemExit(1)


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("dradriver-snapshot.json.gz"),
    show_default=True,
    help="file to write",
)
@click.option(
    "--keep-identifiers",
    is_flag=True,
    help="keep hardware addresses, GUIDs and UUIDs instead of made-up ones",
)
@pass_node
def snapshot(node: Node, out: Path, keep_identifiers: bool) -> None:
    """Record what this node's hardware looks like into one file, for `--snapshot` and for tests."""
    from dradriver.host.snapshot import encode_snapshot, take_snapshot
    from dradriver.inspect.files import size_text

    made = take_snapshot(node.host, keep_identifiers=keep_identifiers)
    content = encode_snapshot(made)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.rename(out)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        fail(f"{out}: {error.strerror}")
    click.echo(
        f"{out}: {len(made.files)} files and {len(made.links)} links in {size_text(len(content))}, "
        f"identifiers {made.identifiers}"
    )


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def replay(file: Path, directory: Path) -> None:
    """Unpack the snapshot FILE into DIRECTORY, which can then be a hostRoot."""
    from dradriver.host.snapshot import SnapshotError, read_snapshot
    from dradriver.host.snapshot import replay as unpack

    try:
        unpack(read_snapshot(file), directory)
    except SnapshotError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or directory}: {error.strerror}")
