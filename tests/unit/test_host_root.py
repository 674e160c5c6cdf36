"""The view of a host under a root directory: it reads, and does not lead out."""

import os
from pathlib import Path

import pytest

from dradriver.host import Host
from hosttree import HostTree


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    (tmp_path / "outside").write_text("secret")
    return HostTree(tmp_path / "root").write("sys/a/value", "17")


@pytest.fixture
def host(tree: HostTree) -> Host:
    return Host(tree.root)


def test_reads_text_and_numbers(tree: HostTree, host: Host) -> None:
    tree.write("sys/a/text", "  two words\0\n").write("sys/a/negative", "-1").write("sys/a/hex", "0x1f")
    assert host.read_text("sys/a/text") == "two words"
    assert host.read_int("sys/a/value") == 17
    assert host.read_int("/sys/a/value") == 17
    assert host.read_int("sys/a/negative") == -1
    assert host.read_int("sys/a/hex") is None
    assert [host.read_hex(f"sys/a/{name}") for name in ("hex", "value", "text", "negative")] == [
        31,
        23,
        None,
        None,
    ]
    assert host.list_dir("sys/a") == ("hex", "negative", "text", "value")
    assert host.exists("sys/a")


def test_what_is_absent_or_odd_is_none(tree: HostTree, host: Host) -> None:
    tree.write("sys/a/bytes", "").link("sys/a/dangling", "nowhere").link("sys/a/loop", "loop")
    (tree.root / "sys/a/bytes").write_bytes(b"\xff\xfe\n")
    os.mkfifo(tree.root / "sys/a/fifo")
    assert host.read_text("sys/nothing") is None
    assert host.read_text("sys/a") is None
    assert host.read_text("sys/a/value/below") is None
    assert host.read_text("sys/a/bytes") == "��"
    assert host.read_text("sys/a/dangling") is None
    assert not host.exists("sys/a/dangling")
    assert host.read_link("sys/a/dangling") == "nowhere"
    assert host.read_link("sys/a/value") is None
    assert (host.link_name("sys/a/dangling"), host.link_name("sys/a/value")) == ("nowhere", None)
    assert host.read_hex("sys/nothing") is None
    assert host.read_text("sys/a/loop") is None
    assert not host.exists("sys/a/loop")
    assert host.resolve("sys/a/loop") is None
    assert host.read_text("sys/a/fifo") == ""
    assert host.list_dir("sys/a/value") == ()


def test_long_files_are_read_to_their_end(tree: HostTree, host: Host) -> None:
    text = "x" * 300_000
    tree.write("proc/long", text)
    assert host.read_text("proc/long") == text


def test_links_are_followed_inside_the_root(tree: HostTree, host: Host) -> None:
    tree.link("sys/bus/absolute", "/sys/a").link("sys/bus/relative", "../a/value")
    tree.link("sys/bus/chain", "/sys/bus/absolute")
    assert host.read_text("sys/bus/absolute/value") == "17"
    assert host.read_text("sys/bus/relative") == "17"
    assert host.resolve("sys/bus/chain/value") == "sys/a/value"
    assert host.path("sys/bus/chain/value") == tree.root / "sys/a/value"
    assert host.resolve("sys/bus/none") is None
    assert [host.link_name(f"sys/bus/{name}") for name in ("absolute", "relative", "none")] == [
        "a",
        "value",
        None,
    ]


def test_no_link_leads_out_of_the_root(tree: HostTree, host: Host) -> None:
    outside = tree.root.parent / "outside"
    tree.link("sys/up", "../" * 30 + "outside").link("sys/absolute", str(outside))
    tree.link("sys/climb", "../..").link("sys/near", "../../outside")
    for path in ("sys/up", "sys/absolute", "sys/climb/outside", "sys/near"):
        assert host.read_text(path) is None
        assert not host.exists(path)
        assert host.path(path).is_relative_to(tree.root)


@pytest.mark.parametrize("path", ["../outside", "sys/../../outside", "sys/..", "a\0b"])
def test_a_path_that_climbs_is_an_error_of_the_caller(host: Host, path: str) -> None:
    for read in (host.read_text, host.path, host.list_dir, host.exists, host.resolve, host.read_link):
        with pytest.raises(ValueError, match=r"path: .*: a path on the host has no '\.\.'"):
            read(path)


def test_names_with_dots_are_names(tree: HostTree, host: Host) -> None:
    tree.write("sys/0000:00:1f.0/..b", "1")
    assert host.read_int("sys/0000:00:1f.0/..b") == 1


def test_the_boot_is_known_by_its_id(tree: HostTree, host: Host) -> None:
    assert host.boot_id() is None
    tree.write("proc/sys/kernel/random/boot_id", "5e3a0f0e-3f0b-4d0e-8a3e-111111111111")
    assert host.boot_id() == "5e3a0f0e-3f0b-4d0e-8a3e-111111111111"


def test_this_host_is_below_the_real_root() -> None:
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        pytest.skip(f"{boot}: no procfs here")
    assert Host().boot_id() == boot.read_text().strip()
    assert Host().path("proc/self/status") == Path("/proc/self/status")
