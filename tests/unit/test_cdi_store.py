"""Spec files on disk: whole or not there, ours only, and named so that no input escapes or collides."""

import json
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver_cdi import (
    CDIError,
    ContainerEdits,
    Device,
    Spec,
    Store,
    claim_file_name,
    claim_file_prefix,
    encode,
    validate,
)

DRIVER = "gpu.example.com"


def spec_of(size: int, letter: str = "x") -> Spec:
    """Return a spec whose file is a little larger than `size` bytes."""
    return Spec("gpu.example.com/claim", (Device("a", ContainerEdits(env=(f"A={letter * size}",))),))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "run" / "cdi")


def files(store: Store) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


def test_a_written_spec_is_read_back(store: Store) -> None:
    spec = Spec("a.b/claim", (Device("0", ContainerEdits(env=("A=é😀\n",))),), {"k": "v"})

    path = store.write("one.json", spec)

    assert path == store.directory / "one.json"
    assert store.read("one.json") == spec
    assert files(store) == ["one.json"]


def test_files_and_a_new_directory_are_readable_by_all_whatever_the_umask(store: Store) -> None:
    before = os.umask(0o077)
    try:
        path = store.write("one.json", spec_of(1))
    finally:
        os.umask(before)

    assert path.stat().st_mode & 0o7777 == 0o644
    assert store.directory.stat().st_mode & 0o7777 == 0o755


def test_the_content_is_the_same_for_the_same_spec(store: Store) -> None:
    one = Spec("a.b/claim", spec_of(1).devices, {"a": "1", "b": "2"})
    other = Spec("a.b/claim", spec_of(1).devices, {"b": "2", "a": "1"})

    assert store.write("one.json", one).read_bytes() == store.write("two.json", other).read_bytes()


def test_an_unchanged_spec_leaves_the_file_alone_and_a_changed_one_replaces_it(store: Store) -> None:
    path = store.write("one.json", spec_of(1))
    inode = path.stat().st_ino

    store.write("one.json", spec_of(1))
    assert path.stat().st_ino == inode

    store.write("one.json", spec_of(2))
    assert path.stat().st_ino != inode
    assert store.read("one.json") == spec_of(2)


def test_a_file_that_was_tampered_with_is_written_anew(store: Store) -> None:
    path = store.write("one.json", spec_of(1))

    path.chmod(0o600)
    store.write("one.json", spec_of(1))
    assert path.stat().st_mode & 0o7777 == 0o644

    elsewhere = path.rename(store.directory.parent / "elsewhere")
    path.symlink_to(elsewhere)
    store.write("one.json", spec_of(1))
    assert not path.is_symlink()

    path.unlink()
    os.mkfifo(path)
    store.write("one.json", spec_of(1))
    assert store.read("one.json") == spec_of(1)


def test_an_invalid_spec_touches_nothing(store: Store) -> None:
    path = store.write("one.json", spec_of(1))
    before = path.read_bytes()

    with pytest.raises(CDIError, match="devices: "):
        store.write("one.json", Spec("gpu.example.com/claim", ()))

    assert path.read_bytes() == before
    assert files(store) == ["one.json"]


def test_the_directory_may_vanish_at_any_time(store: Store) -> None:
    store.write("one.json", spec_of(1))
    shutil.rmtree(store.directory.parent)

    assert store.names("") == []
    assert store.remove("one.json") is False
    assert store.reconcile("one", set()) == []
    store.write("one.json", spec_of(1))
    assert store.names("") == ["one.json"]


def test_remove_says_whether_the_file_was_there(store: Store) -> None:
    store.write("one.json", spec_of(1))

    assert store.remove("one.json") is True
    assert store.remove("one.json") is False
    with pytest.raises(FileNotFoundError):
        store.read("one.json")


def test_names_lists_the_spec_files_of_a_prefix(store: Store) -> None:
    for name in ("b-2.json", "b-1.json", "c-1.json"):
        store.write(name, spec_of(1))
    (store.directory / "b-3.yaml").touch()
    (store.directory / "b-4.json").mkdir()

    assert store.names("b-") == ["b-1.json", "b-2.json"]
    assert store.names("d") == []


def test_reconcile_removes_what_is_stale_and_ours_only(store: Store) -> None:
    ours = [claim_file_name(DRIVER, uid) for uid in ("1", "2", "3")]
    for name in (*ours, "nic.example.com-claim-1.json"):
        store.write(name, spec_of(1))
    killed = f"{ours[0]}.0123456789abcdef.tmp"
    others = [
        "nic.example.com-claim-2.json.0123456789abcdef.tmp",
        f"{ours[0]}.bak",
        "spec.1.tmp",
        "vendor.yaml",
    ]
    for name in (killed, *others):
        (store.directory / name).touch()

    removed = store.reconcile(claim_file_prefix(DRIVER), {ours[1]})

    assert removed == sorted([ours[0], killed, ours[2]])
    assert files(store) == sorted([ours[1], "nic.example.com-claim-1.json", *others])
    assert store.reconcile(claim_file_prefix(DRIVER), {ours[1]}) == []


@pytest.mark.parametrize("prefix", ["", ".", "../", "a/b", "-", "*", "a\n"])
def test_reconcile_refuses_a_prefix_that_is_not_ours(store: Store, prefix: str) -> None:
    with pytest.raises(CDIError, match=r"^prefix: "):
        store.reconcile(prefix, set())


HOSTILE_NAMES = [
    "",
    ".json",
    ".hidden.json",
    "-rf.json",
    "one",
    "one.yaml",
    "one.json.tmp",
    "../one.json",
    "/etc/one.json",
    "a/one.json",
    "..",
    "one.json/",
    "one\0.json",
    "one.json\n",
    "o ne.json",
    "ön.json",
    "$(id).json",
    "x" * 230 + ".json",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_file_names_are_refused_by_every_method(store: Store, name: str) -> None:
    store.write("one.json", spec_of(1))
    for method in (
        lambda: store.write(name, spec_of(1)),
        lambda: store.read(name),
        lambda: store.remove(name),
    ):
        with pytest.raises(CDIError, match=r"^file name: "):
            method()

    assert files(store) == ["one.json"]


def test_the_longest_file_name_leaves_room_for_its_temporary_file(store: Store) -> None:
    name = "x" * 229 + ".json"
    store.write(name, spec_of(1))

    assert store.names("x") == [name]


def test_claim_file_names_are_plain_for_plain_uids_and_hashed_for_others() -> None:
    uid = "0b9d7a0e-4a5c-4b0e-9c55-0d6d3a7f1c2b"
    assert claim_file_name(DRIVER, uid) == f"{DRIVER}-claim-{uid}.json"

    for hostile in ("", "../../etc/passwd", "A", "a" * 64, "a.b", "a\0", "é", "\udc80", "a\n"):
        name = claim_file_name(DRIVER, hostile)
        assert name.startswith(f"{DRIVER}-claim-_")
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-")
        assert len(name) < 200


@pytest.mark.parametrize(
    "driver", ["", "GPU.example.com", "a/b", "../a", "a..b", "-a", "a" * 64, "a-claim-b", "a-claim"]
)
def test_claim_file_names_refuse_a_driver_that_is_none_or_blurs_names(driver: str) -> None:
    with pytest.raises(CDIError, match=r"^driver: "):
        claim_file_name(driver, "1")


PARTS = st.lists(
    st.sampled_from(["a", "b.c", "claim", "-claim-", "-", "_", "0"]), min_size=1, max_size=5
).map("".join)


@settings(max_examples=200, deadline=None)
@given(st.sets(st.tuples(PARTS, PARTS | st.text(max_size=3)), min_size=2, max_size=6))
def test_two_claims_never_share_a_file_name(claims: set[tuple[str, str]]) -> None:
    named = {}
    for driver, uid in claims:
        try:
            named[driver, uid] = claim_file_name(driver, uid)
        except CDIError:
            continue
    for (one, name), (other, other_name) in combinations(named.items(), 2):
        assert name != other_name
        if one[0] != other[0]:
            assert not name.startswith(claim_file_prefix(other[0]))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b"NaN",
        b"[" * 100_000,
        b'{"kind": "a/b", "kind": "c/d"}',
        b"1" * 5000,
    ],
)
def test_a_file_that_is_no_spec_is_refused_by_name(store: Store, content: bytes) -> None:
    store.write("one.json", spec_of(1)).write_bytes(content)

    with pytest.raises(CDIError, match=r"^one\.json: "):
        store.read("one.json")


def test_a_stored_spec_that_breaks_a_rule_is_refused(store: Store) -> None:
    path = store.write("one.json", spec_of(1))
    path.write_text(path.read_text().replace("A=x", "A"))

    with pytest.raises(CDIError, match=r"^one\.json: devices\[0\]\.containerEdits\.env\[0\]: 'A': "):
        store.read("one.json")


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_the_content_means_the_same_to_the_yaml_parser_of_the_runtimes(value: str) -> None:
    spec = Spec("a.b/claim", (Device("a", ContainerEdits(env=(f"A={value}",))),))
    validate(spec)

    assert yaml.safe_load(encode(spec)) == json.loads(encode(spec)) == spec.to_dict()


def test_control_characters_and_line_breaks_of_yaml_survive() -> None:
    value = "".join(map(chr, [*range(1, 0x100), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF, 0x1F600]))
    spec = Spec("a.b/claim", (Device("a", ContainerEdits(env=(f"A={value}",))),))

    assert yaml.safe_load(encode(spec)) == spec.to_dict()
    assert "\U0001f600".encode() in encode(spec)


def test_a_reader_never_sees_half_a_file(store: Store) -> None:
    specs = [spec_of(size, letter) for size, letter in ((10, "a"), (300_000, "b"), (5_000, "c"))]
    names = [f"claim-{index}.json" for index in range(4)]
    for name in names:
        store.write(name, specs[0])
    written = threading.Event()

    def read() -> int:
        rounds = 0
        while not written.is_set():
            seen = [path for path in store.directory.iterdir() if path.suffix in {".json", ".yaml"}]
            assert sorted(path.name for path in seen) == names
            assert all(Spec.from_dict(json.loads(path.read_bytes())) in specs for path in seen)
            rounds += 1
        return rounds

    def write(own: list[str]) -> None:
        for turn in range(60):
            for name in own:
                store.write(name, specs[turn % len(specs)])
            store.reconcile("claim-", set(names))

    with ThreadPoolExecutor() as threads:
        reader = threads.submit(read)
        writers = [threads.submit(write, names[:3]), threads.submit(write, names[1:])]
        try:
            for writer in writers:
                writer.result()
        finally:
            written.set()
        assert reader.result() > 0

    assert files(store) == names


def test_a_write_that_fails_half_way_leaves_the_old_file_and_no_other(store: Store) -> None:
    store.write("one.json", spec_of(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*/one\.json'$"):
            store.write("one.json", spec_of(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert files(store) == ["one.json"]
    assert store.read("one.json") == spec_of(1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tmpfs")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_leaves_the_old_file_and_no_other(small_disk: Path) -> None:
    store = Store(small_disk)
    store.write("one.json", spec_of(1))

    for name in ("one.json", "two.json"):
        with pytest.raises(OSError, match=f"No space left on device: '{small_disk}/{name}'"):
            store.write(name, spec_of(200_000))

    assert files(store) == ["one.json"]
    assert store.read("one.json") == spec_of(1)


def test_a_directory_in_the_place_of_the_file_is_an_error_that_leaves_nothing(store: Store) -> None:
    store.write("one.json", spec_of(1))
    (store.directory / "two.json").mkdir()

    with pytest.raises(IsADirectoryError, match=r"/two\.json'$"):
        store.write("two.json", spec_of(1))
    with pytest.raises(CDIError, match="must be a plain file"):
        store.read("two.json")

    assert files(store) == ["one.json", "two.json"]


def test_what_is_no_plain_file_is_never_read_and_a_write_replaces_it(store: Store) -> None:
    other = store.write("other.json", spec_of(1))
    path = store.directory / "one.json"
    foreign: list[Callable[[], object]] = [
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(other),
    ]
    for make in foreign:
        make()
        with pytest.raises(CDIError, match=r"^one\.json: '[lp]r.*': must be a plain file"):
            store.read("one.json")
        store.write("one.json", spec_of(1))
        assert store.read("one.json") == spec_of(1)
        assert store.remove("one.json")


def test_a_file_that_is_too_large_is_neither_written_nor_read(store: Store) -> None:
    store.write("one.json", spec_of(1))
    with pytest.raises(CDIError, match="must be at most 16777216 bytes"):
        store.write("one.json", spec_of(17 << 20))
    os.truncate(store.directory / "one.json", 1 << 40)
    with pytest.raises(CDIError, match="at most 16777216 bytes"):
        store.read("one.json")
    store.write("one.json", spec_of(1))
    assert store.read("one.json") == spec_of(1)
