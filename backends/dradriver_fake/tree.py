"""The sysfs and procfs tree of a node, built from its facts: what every reader of a host sees of it."""

import uuid
from pathlib import Path

from dradriver_fake.facts import NodeFacts
from dradriver_fake.tree_cpu import add_cpus, add_numa
from dradriver_fake.tree_pci import add_pci
from dradriver_fake.writer import Tree

BOOT_ID = "proc/sys/kernel/random/boot_id"


def build_tree(root: Path, facts: NodeFacts) -> None:
    """Write the files of a node below `root`, which holds none of them yet. Raises OSError."""
    tree = Tree(root)
    add_cpus(tree, facts)
    add_numa(tree, facts)
    add_pci(tree, facts)
    new_boot(root)


def new_boot(root: Path) -> None:
    """Give the node another boot id, as a reboot does."""
    tree = Tree(root)
    tree.file(f"{BOOT_ID}.new", uuid.uuid4())
    (root / f"{BOOT_ID}.new").rename(root / BOOT_ID)
