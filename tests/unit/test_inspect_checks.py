"""The checks: given this node, what is wrong and what would mend it."""

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dradriver.config import Settings, SettingsError, load
from dradriver.engine import DeviceRecord, Record, State, open_journal
from dradriver.host import Host, read_topology
from dradriver.inspect import Check, Status, worst
from dradriver.inspect.cdi import check_cdi_conflicts, check_cdi_directory, check_cdi_files
from dradriver.inspect.checks import check_node, check_pool
from dradriver.inspect.files import mount_of, size_text
from dradriver.inspect.kubelet import (
    check_directories,
    check_kubelet_root,
    check_managers,
    check_registration,
    check_same_path,
    check_socket_paths,
)
from dradriver.inspect.runtime import check_runtime
from dradriver.inspect.state import check_journal, check_lock, check_state_directory
from dradriver.inspect.system import (
    check_clock,
    check_host_root,
    check_permissions,
    check_topology,
    check_uevents,
    check_versions,
)
from dradriver.model import Allocated, ClaimRef
from dradriver.sim.kubelet import RegisteredPlugin
from dradriver_cdi import ContainerEdits, Device, Spec, Store, claim_file_name
from dradriver_fake import set_faults
from dradriver_fake.faults import decode_faults
from fakenode import machine
from hosttree import HostTree, two_sockets

CPU = "cpu.dradriver.io"


def status(*checks: Check) -> str:
    return " ".join(check.status.value for check in checks)


def only(checks: list[Check]) -> Check:
    (check,) = checks
    return check


def record(name: str, state: State = State.PREPARED, created: float = 1.0, message: str = "") -> Record:
    device = DeviceRecord("cpu", Allocated("r", CPU, "n/cpu", "cpu-numa-0", {}))
    return Record(
        CPU, ClaimRef(f"uid-{name}", "default", name), state, "b", created, (device,), message=message
    )


def test_a_host_root_without_mounts_is_an_error_that_names_the_mounts(tmp_path: Path) -> None:
    found = check_host_root(Host(tmp_path))
    assert found.status is Status.ERROR
    assert (
        found.mend == f"mount the host's /sys and /proc below {tmp_path}, or name the right place as hostRoot"
    )
    tree = HostTree(tmp_path).online("0")
    assert "no readable proc of" in check_host_root(Host(tree.root)).seen
    assert status(check_host_root(Host(tree.memory(1024).root))) == "ok"


def test_contradicting_numa_tables_are_a_warning_and_no_cpus_an_error(tmp_path: Path) -> None:
    assert status(check_topology(read_topology(Host(tmp_path)))) == "error"
    tree = two_sockets(tmp_path)
    good = check_topology(read_topology(Host(tree.root)))
    assert (good.status, good.seen) == (Status.OK, "8 CPUs, 2 sockets, 2 NUMA nodes")
    tree.write("sys/devices/system/node/node1/cpulist", "0-7")
    assert status(check_topology(read_topology(Host(tree.root)))) == "warning"


def test_versions_name_kernel_python_and_packages(tmp_path: Path) -> None:
    HostTree(tmp_path).write("proc/sys/kernel/osrelease", "6.8.0-test")
    seen = check_versions(Host(tmp_path)).seen
    assert "kernel 6.8.0-test" in seen
    for name in ("Python 3.", "dradriver ", "grpcio ", "protobuf ", "SQLite "):
        assert name in seen
    assert check_versions(Host(tmp_path / "made up")).seen.startswith("Python 3.")


def test_who_is_not_root_needs_a_directory_of_his_own() -> None:
    assert status(check_permissions(0, "CapEff:\t0000000000200002\n", own_directory=False)) == "ok"
    seen = check_permissions(0, "CapEff:\t0000000000200002\n", own_directory=False).seen
    assert seen == "user 0, with CAP_DAC_OVERRIDE, CAP_SYS_ADMIN"
    assert "without CAP_DAC_OVERRIDE" in check_permissions(0, "CapEff: 0", own_directory=False).seen
    assert "unknown" in check_permissions(0, None, own_directory=False).seen
    assert status(check_permissions(1000, None, own_directory=False)) == "warning"
    assert status(check_permissions(1000, None, own_directory=True)) == "ok"


def test_the_clock_is_in_a_sane_year_and_not_before_the_journal() -> None:
    assert status(check_clock(0.0, None)) == "error"
    assert status(check_clock(1_800_000_000.0, None)) == "ok"
    assert status(check_clock(1_800_000_000.0, 1_700_000_000.0)) == "ok"
    late = check_clock(1_800_000_000.0, 1_800_000_100.0)
    assert late.status is Status.WARNING
    assert "2027-01-15T08:01:40+00:00" in late.seen


def test_kernel_events_are_tried_for_real() -> None:
    assert check_uevents().status in {Status.OK, Status.WARNING}


def test_a_kubelet_root_is_there_and_a_kubelet_listens(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert status(check_kubelet_root(missing, own_directory=False)) == "error"
    assert status(check_kubelet_root(missing, own_directory=True)) == "ok"
    assert status(check_kubelet_root(tmp_path, own_directory=False)) == "unknown"
    assert status(check_kubelet_root(tmp_path, own_directory=True)) == "ok"


def test_a_kubelet_that_listens_is_seen(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("k")
    (root / "device-plugins").mkdir()
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(root / "device-plugins/kubelet.sock"))
        assert status(check_kubelet_root(root, own_directory=False)) == "unknown"
        kubelet.listen()
        assert status(check_kubelet_root(root, own_directory=False)) == "ok"


MOUNTS = """\
21 1 8:1 / / rw,relatime - ext4 /dev/root rw
22 21 8:2 {root} {point} rw,relatime shared:1 - {kind} /dev/other rw
"""


@pytest.mark.parametrize(
    ("root", "point", "expected"),
    [
        ("/var/lib/kubelet", "/var/lib/kubelet", "ok"),
        ("/@/var/lib/kubelet", "/var/lib/kubelet", "ok"),
        ("/lib/kubelet", "/var/lib/kubelet", "ok"),
        ("/", "/var/lib/kubelet", "ok"),
        ("/data/kubelet", "/var/lib/kubelet", "error"),
        ("/kubelet\\040two", "/mnt", "ok"),
    ],
)
def test_the_kubelets_directory_has_one_path_inside_and_outside(root: str, point: str, expected: str) -> None:
    mountinfo = MOUNTS.format(root=root, point=point, kind="ext4")
    assert status(check_same_path(Path("/var/lib/kubelet"), mountinfo)) == expected


def test_the_last_and_nearest_mount_holds_a_path() -> None:
    text = MOUNTS.format(root="/a", point="/with\\040blank", kind="xfs") + "broken line\n"
    found = mount_of(text, Path("/with blank/x"))
    assert found
    assert (str(found.root), found.kind) == ("/a", "xfs")
    assert mount_of("", Path("/x")) is None
    assert status(check_same_path(Path("/x"), "")) == "unknown"


def test_directories_are_ours_and_private(tmp_path_factory: pytest.TempPathFactory) -> None:
    checks, paths = check_socket_paths([CPU], tmp_path_factory.mktemp("k"), None)
    assert status(*checks) == "ok"
    uid = os.geteuid()
    assert status(*check_directories(paths, uid)) == "ok ok"
    paths[0].make_directories()
    assert status(*check_directories(paths, uid)) == "ok ok"
    assert "mode 0700" in check_directories(paths, uid)[1].seen
    paths[0].plugin_dir.chmod(0o755)
    wide = check_directories(paths, uid)[1]
    assert (wide.status, wide.seen.endswith(f"mode 0755, user {uid}")) == (Status.WARNING, True)
    paths[0].plugin_dir.chmod(0o700)
    assert status(check_directories(paths, uid + 1)[1]) == "error"
    paths[0].plugin_dir.rmdir()
    paths[0].plugin_dir.write_text("in the way")
    assert "is not a directory" in check_directories(paths, uid)[1].seen


def test_socket_paths_that_cannot_fit_are_an_error() -> None:
    checks, paths = check_socket_paths([CPU], Path("/" + "x" * 120), None)
    assert (status(*checks), paths) == ("error", [])
    checks, paths = check_socket_paths(
        [CPU], Path("/var/lib/kubelet"), "3f2b8a10-9c4d-4e5f-8a6b-7c8d9e0f1a2b"
    )
    assert status(*checks) == "ok"


def test_a_registration_is_judged_by_who_answers(tmp_path: Path) -> None:
    endpoint = tmp_path / "dra.sock"
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(endpoint))
        good = RegisteredPlugin(
            tmp_path / f"{CPU}-reg.sock", "DRAPlugin", CPU, str(endpoint), ("v1.DRAPlugin",)
        )
        other = RegisteredPlugin(tmp_path / "other-reg.sock", error="UNAVAILABLE")
        assert status(check_registration(CPU, [other, good], active=True)) == "ok"
    lost = replace(good, endpoint=str(tmp_path / "gone.sock"))
    assert "where no socket is" in check_registration(CPU, [lost], active=True).seen
    silent = RegisteredPlugin(tmp_path / f"{CPU}-reg.sock", error="DEADLINE_EXCEEDED")
    assert status(check_registration(CPU, [silent], active=True)) == "error"
    assert status(check_registration(CPU, [other], active=True)) == "error"
    assert status(check_registration(CPU, [], active=False)) == "warning"


def test_managers_of_the_kubelet_that_pin_are_refused(tmp_path: Path) -> None:
    kinds = ["cpu", "memory", "gpu"]
    assert status(*check_managers(tmp_path, kinds)) == "unknown unknown"
    (tmp_path / "config.yaml").write_text("cpuManagerPolicy: static\nmemoryManagerPolicy: None\n")
    cpu, memory = check_managers(tmp_path, kinds)
    assert (cpu.status, memory.status) == (Status.ERROR, Status.OK)
    assert cpu.seen == "policy static, says its configuration"
    assert "set cpuManagerPolicy to none" in cpu.mend
    (tmp_path / "config.yaml").write_text("{")
    (tmp_path / "cpu_manager_state").write_text('{"policyName":"none","defaultCpuSet":"","checksum":1}')
    (tmp_path / "memory_manager_state").write_text('{"policyName":"Static"}')
    assert status(*check_managers(tmp_path, kinds)) == "ok error"
    assert check_managers(tmp_path, ["gpu"]) == []


def test_the_state_directory_has_room_and_lasts(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    first = only(check_state_directory(state, "", own_directory=False))
    assert first.status is Status.OK
    assert "will be made" in first.seen
    overlay = MOUNTS.format(root="/", point=tmp_path, kind="overlay")
    fleeting = only(check_state_directory(state, overlay, own_directory=False))
    assert (fleeting.status, "ends with the container" in fleeting.seen) == (Status.WARNING, True)
    assert status(*check_state_directory(state, overlay, own_directory=True)) == "ok"
    (tmp_path / "a").write_text("in the way")
    assert status(*check_state_directory(state, "", own_directory=False)) == "error"


def test_a_lock_tells_who_is_active(tmp_path: Path) -> None:
    lock = tmp_path / "serialize.lock"
    check, active = check_lock(lock)
    assert (check.status, active) == (Status.OK, False)
    with lock.open("w") as held:
        assert check_lock(lock)[1] is False
        fcntl.flock(held, fcntl.LOCK_EX)
        check, active = check_lock(lock)
        assert active is True
        assert check.seen in {f"process {os.getpid()}", "a process that cannot be seen from here"}
    assert check_lock(lock)[1] is False


@contextmanager
def journalled(path: Path, *records: Record, boot: str = "b") -> Iterator[None]:
    journal, _ = open_journal(path)
    try:
        journal.set_fact("boot", boot)
        for one in records:
            journal.insert(one)
        yield
    finally:
        journal.close()


def test_a_journal_is_read_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    checks, records = check_journal(path, "b")
    assert (status(*checks), records) == ("ok", [])
    late = record("late", State.UNPREPARING, message="the disk is away")
    with journalled(path, record("a"), late):
        checks, records = check_journal(path, "b")
        assert status(*checks) == "ok warning"
        assert checks[0].seen.endswith("sound, 2 claims")
        assert checks[1].seen == f"default/late (uid-late) of {CPU}: unpreparing: the disk is away"
        assert records is not None
        assert [one.ref.name for one in records] == ["a", "late"]
        assert "of an earlier boot" in check_journal(path, "c")[0][0].seen


def test_a_claim_of_two_drivers_is_one_claim(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with journalled(path, record("a"), replace(record("a"), driver="memory.dradriver.io")):
        checks, records = check_journal(path, "b")
        assert checks[0].seen.endswith("sound, 1 claim")
        assert records is not None
        assert len(records) == 2


@pytest.mark.parametrize("content", [b"not a database", b"SQLite format 3\0" + b"x" * 4096])
def test_a_damaged_journal_is_an_error_and_stays_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(content)
    checks, records = check_journal(path, None)
    assert (status(*checks), records) == ("error", None)
    assert path.read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["journal.db"]


def claim_file(store: Store, uid: str) -> Path:
    spec = Spec(f"{CPU}/claim", (Device(f"{uid}-0", ContainerEdits(env=("A=b",))),))
    return store.write(claim_file_name(CPU, uid), spec)


def test_cdi_files_are_compared_with_the_journal(tmp_path: Path) -> None:
    store = Store(tmp_path / "cdi")
    directory = store.directory
    assert status(check_cdi_directory(directory)) == "ok"
    assert status(*check_cdi_files(directory, [CPU], [])) == "ok"
    path = claim_file(store, "uid-a")
    assert status(*check_cdi_files(directory, [CPU], [record("a")])) == "ok"
    stale = only(check_cdi_files(directory, [CPU], []))
    assert (stale.status, stale.seen) == (Status.WARNING, f"{path}: of no claim in the journal")
    missing = only(
        check_cdi_files(directory, [CPU], [record("a"), record("b"), record("c", State.PREPARING)])
    )
    assert missing.status is Status.ERROR
    assert "missing, for claim default/b (uid-b)" in missing.seen
    assert status(*check_cdi_files(directory, [CPU], None)) == "ok"
    path.write_text("{}")
    broken = only(check_cdi_files(directory, [CPU], [record("a")]))
    assert broken.status is Status.ERROR
    assert str(path) in broken.seen


def test_a_cdi_device_that_two_files_define_is_a_conflict(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = claim_file(store, "uid-a")
    assert status(*check_cdi_conflicts([tmp_path], [CPU])) == "ok"
    (tmp_path / "copy.json").write_bytes(path.read_bytes())
    ours = only(check_cdi_conflicts([tmp_path], [CPU]))
    assert ours.status is Status.ERROR
    assert f"{CPU}/claim=uid-a-0 is defined in copy.json and {path.name}" in ours.seen
    theirs = only(check_cdi_conflicts([tmp_path], []))
    assert theirs.status is Status.WARNING
    (tmp_path / "copy.json").unlink()
    (tmp_path / "copy.txt").write_bytes(path.read_bytes())
    (tmp_path / "vendor.yaml").write_text("kind: x/y\ndevices: [{name: a}, 7, {name: a}]")
    again = only(check_cdi_conflicts([tmp_path, tmp_path / "none"], [CPU]))
    assert "x/y=a is defined in vendor.yaml and vendor.yaml" in again.seen
    (tmp_path / "vendor.yaml").write_text("a: [")
    assert "line 2: not valid YAML" in only(check_cdi_conflicts([tmp_path], [CPU])).seen


GRPC = '[plugins."io.containerd.grpc.v1.cri"]\n'
CRI = "[plugins.'io.containerd.cri.v1.runtime']\n"


@pytest.mark.parametrize(
    ("files", "expected", "words"),
    [
        ({}, "unknown", "neither"),
        ({"containerd/config.toml": ""}, "warning", "enable_cdi is not set"),
        ({"containerd/config.toml": f"version = 2\n{GRPC}"}, "warning", "version 2"),
        ({"containerd/config.toml": f"version = 2\n{GRPC}enable_cdi = true"}, "ok", "/etc/cdi, /var/run/cdi"),
        (
            {"containerd/config.toml": f"version = 2\n{GRPC}enable_cdi = false"},
            "error",
            "enable_cdi is false",
        ),
        ({"containerd/config.toml": "version = 3"}, "ok", "enabled"),
        ({"containerd/config.toml": f"version = 3\n{CRI}enable_cdi = false"}, "error", "is false"),
        (
            {"containerd/config.toml": f"version = 3\n{CRI}cdi_spec_dirs = ['/etc/cdi']"},
            "error",
            "reads /etc/cdi",
        ),
        ({"containerd/config.toml": f"version = 3\n{CRI}cdi_spec_dirs = ['/run/cdi/']"}, "ok", "/run/cdi"),
        ({"containerd/config.toml": f"version = 3\n{CRI}cdi_spec_dirs = []"}, "error", "no directory"),
        ({"containerd/config.toml": "version = "}, "error", "not valid TOML"),
        ({"containerd/config.toml": "version = 3\nplugins = 7"}, "ok", "enabled"),
        (
            {
                "containerd/config.toml": "version = 2\nimports = ['/etc/containerd/conf.d/*.toml', '../x', 7]",
                "containerd/conf.d/10.toml": f"{GRPC}enable_cdi = false",
                "containerd/conf.d/20.toml": f"{GRPC}enable_cdi = true",
                "containerd/conf.d/30.txt": f"{GRPC}enable_cdi = false",
            },
            "ok",
            "enabled",
        ),
        ({"crio/crio.conf": "[crio.runtime]"}, "ok", "as always"),
        (
            {
                "crio/crio.conf": "[crio.runtime]\ncdi_spec_dirs = ['/var/run/cdi']",
                "crio/crio.conf.d/10-a.conf": "[crio.runtime]\ncdi_spec_dirs = ['/opt/cdi']",
            },
            "error",
            "reads /opt/cdi",
        ),
        ({"containerd/config.toml": "version = 3", "crio/crio.conf.d/a": ""}, "ok ok", "enabled"),
    ],
)
def test_the_runtime_gives_containers_what_cdi_files_say(
    files: dict[str, str], expected: str, words: str, tmp_path: Path
) -> None:
    tree = HostTree(tmp_path)
    for name, text in files.items():
        tree.write(f"etc/{name}", text)
    checks = check_runtime(Host(tree.root), Path("/var/run/cdi"), own_directory=False)
    assert status(*checks) == expected
    assert words in checks[0].seen
    assert all(bool(check.mend) == (check.status is not Status.OK) for check in checks)


def test_no_runtime_reads_a_directory_of_ones_own(tmp_path: Path) -> None:
    assert status(*check_runtime(Host(tmp_path), tmp_path, own_directory=True)) == "ok"


@pytest.fixture
def node() -> Iterator[Settings]:
    """A node of two sockets below one short directory: its sockets have paths too."""
    with tempfile.TemporaryDirectory(prefix="dra-") as directory:
        root = Path(directory)
        two_sockets(root / "host")
        yield replace(load(None, root / "d", {"NODE_NAME": "node-a"}), host_root=root / "host")


def test_a_node_before_its_first_start_has_no_error_and_nothing_is_made(node: Settings) -> None:
    checks = check_node(node, own_directory=True)
    assert [check for check in checks if check.status is Status.ERROR] == []
    assert [path.name for path in node.host_root.parent.iterdir()] == ["host"]
    names = [check.name for check in checks]
    assert names[:2] == ["configuration", "versions"]
    assert {"backend cpu", "backend memory", "kubelet root", "CDI files", "journal"} <= set(names)


def test_hardware_that_no_driver_is_configured_for_is_told(node: Settings) -> None:
    assert check_node(node, own_directory=True)[0].seen.endswith("; used by none: gpu, nic")
    alone = replace(node, drivers=((CPU, ("cpu",)),))
    assert check_node(alone, own_directory=True)[0].seen.endswith("; used by none: gpu, memory, nic")


def test_a_wrong_configuration_is_an_error_and_what_needs_none_is_checked(node: Settings) -> None:
    checks = check_node(SettingsError("x.yaml: node: no"), own_directory=False)
    assert (checks[0].status, checks[0].seen) == (Status.ERROR, "x.yaml: node: no")
    assert (checks[-1].status, worst(checks)) == (Status.UNKNOWN, Status.ERROR)
    broken = replace(node, options={"cpu": {"reserved": "x"}})
    found = next(check for check in check_node(broken, own_directory=True) if check.name == "backends")
    assert found.status is Status.ERROR


def test_every_error_and_warning_says_how_to_mend_it(node: Settings) -> None:
    wrong = replace(node, kubelet_root=node.host_root / "no", cdi=node.host_root / "no-cdi")
    checks = check_node(wrong, own_directory=False)
    assert worst(checks) is Status.ERROR
    for check in checks:
        assert bool(check.mend) or check.status in {Status.OK, Status.UNKNOWN}
        assert check.view()["status"] == check.status.value


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (32 << 20, "32 MiB"),
        (7 << 40, "7 TiB"),
    ],
)
def test_sizes_are_readable(size: int | None, text: str) -> None:
    assert size_text(size) == text


def test_a_sick_thing_is_named_once_for_all_that_is_made_of_it(tmp_path: Path) -> None:
    with machine(tmp_path) as made:
        set_faults(
            made.host_root,
            decode_faults(
                [
                    {"device": "gpu-0000-43-00-0", "does": "sick", "message": "XID 79"},
                    {"device": "nic-0000-44-00-3", "does": "sick"},
                ],
                "faults",
            ),
        )
        made.refresh()
        gpu, nic = (
            [check for check in check_pool(made.pool(kind), "n1") if check.status is Status.WARNING]
            for kind in ("gpu", "nic")
        )
        assert [check.seen for check in gpu] == ["gpu-0000-43-00-0 (14 devices): XID 79"]
        assert [check.seen for check in nic] == ["nic-0000-44-00-3: is sick, as the fault script says"]
