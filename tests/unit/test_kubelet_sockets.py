"""Names of sockets: unique for each instance, and never longer than the kernel allows."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.kubelet import KUBELET_ROOT, SocketPaths
from dradriver.kubelet.sockets import MAX_PATH_BYTES, bind_path

UID = "b1946ac9-2c6b-4d3a-9d5e-0c9a1f0e7a11"
OTHER_UID = "b1946ac9-2c6b-4d3a-9d5e-0c9a1f0e7a12"
LONG_DRIVER = "a" * 59 + ".com"

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
drivers = st.lists(labels, min_size=1, max_size=2).map(".".join)


def test_a_driver_that_runs_once_has_the_well_known_names() -> None:
    paths = SocketPaths.of("gpu.example.com")
    assert paths.registration == KUBELET_ROOT / "plugins_registry/gpu.example.com-reg.sock"
    assert paths.service == KUBELET_ROOT / "plugins/gpu.example.com/dra.sock"


def test_an_instance_carries_its_uid_in_both_names() -> None:
    paths = SocketPaths.of("gpu.example.com", instance=UID)
    assert paths.registration == KUBELET_ROOT / f"plugins_registry/gpu.example.com-{UID}-reg.sock"
    assert paths.service == KUBELET_ROOT / f"plugins/gpu.example.com/dra-{UID}.sock"


def test_the_longest_driver_name_fits_below_the_usual_root() -> None:
    assert len(LONG_DRIVER) == 63
    one, other = (SocketPaths.of(LONG_DRIVER, instance=uid) for uid in (UID, OTHER_UID))
    for path in (*one.sockets, *other.sockets, *SocketPaths.of(LONG_DRIVER).sockets):
        assert len(os.fsencode(path)) <= MAX_PATH_BYTES
    assert one.registration != other.registration
    assert one.service != other.service
    assert one == SocketPaths.of(LONG_DRIVER, instance=UID)


@given(driver=drivers, instance=st.none() | st.uuids().map(str), depth=st.integers(0, 34))
def test_every_name_fits(driver: str, instance: str | None, depth: int) -> None:
    paths = SocketPaths.of(driver, Path("/" + "r" * depth), instance)
    for socket in paths.sockets:
        assert len(os.fsencode(socket)) <= MAX_PATH_BYTES
        assert len(bind_path(socket).name) <= len(socket.name)
        assert bind_path(socket).name.startswith(".")


@pytest.mark.parametrize("instance", [None, UID])
def test_a_root_that_leaves_no_room_is_named(instance: str | None) -> None:
    with pytest.raises(ValueError, match=f"kubelet root '/{'r' * 90}' is too long"):
        SocketPaths.of("gpu.example.com", Path("/" + "r" * 90), instance)


def test_bytes_count_and_not_characters() -> None:
    with pytest.raises(ValueError, match="at most 107 are allowed"):
        SocketPaths.of("gpu.example.com", Path("/" + "ä" * 45))


@pytest.mark.parametrize("driver", ["", "Gpu.example.com", "../gpu", "gpu/../x", "gpu\nx", "a" * 64])
def test_a_driver_name_that_is_no_dns_name_never_reaches_a_path(driver: str) -> None:
    with pytest.raises(ValueError, match="driver name"):
        SocketPaths.of(driver)


@pytest.mark.parametrize("uid", ["", "../../etc", "a b", "a\n", "x" * 64])
def test_a_uid_that_is_none_never_reaches_a_path(uid: str) -> None:
    with pytest.raises(ValueError, match="uid"):
        SocketPaths.of("gpu.example.com", instance=uid)


def test_a_relative_root_is_refused() -> None:
    with pytest.raises(ValueError, match="'var/lib/kubelet' is not an absolute path"):
        SocketPaths.of("gpu.example.com", Path("var/lib/kubelet"))
