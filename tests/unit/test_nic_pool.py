"""Addresses from a pool: each given out once, the lowest first, and never one that is somebody's."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.backend import PlanError, decode
from dradriver_nic.config import AddressPool
from dradriver_nic.pool import addresses_in, hand_out, hold_of


def pool(cidr: str | list[str], *reserved: str) -> AddressPool:
    return decode(AddressPool, {"cidr": cidr, "reserved": list(reserved)}, "addressPool")


def test_the_lowest_free_address_is_given_out_with_the_prefix_of_its_network() -> None:
    assert hand_out(pool("10.9.0.0/24"), ()) == ("10.9.0.1/24",)
    held = {hold_of("10.9.0.1/24"), hold_of("10.9.0.2/24"), hold_of("10.9.0.4"), "vf:3", "ip:nonsense"}
    assert hand_out(pool("10.9.0.0/24"), held) == ("10.9.0.3/24",)


def test_reserved_addresses_and_those_that_are_taken_are_left_out() -> None:
    made = pool("10.9.0.0/24", "10.9.0.1", "10.9.0.2-10.9.0.9", "10.9.0.16/28")
    assert hand_out(made, [hold_of(f"10.9.0.{n}") for n in range(10, 16)], ["10.9.0.32"]) == ("10.9.0.33/24",)


def test_each_family_has_its_address() -> None:
    both = pool(["10.9.0.0/30", "fd00:9::/64"], "fd00:9::1")
    assert hand_out(both, [hold_of("10.9.0.1")]) == ("10.9.0.2/30", "fd00:9::2/64")


def test_a_pool_that_is_used_up_says_so() -> None:
    small = pool("10.9.0.0/30")
    with pytest.raises(PlanError, match=r"no address of 10\.9\.0\.0/30 is free: all 2 are given out"):
        hand_out(small, [hold_of("10.9.0.1"), hold_of("10.9.0.2")])


@pytest.mark.parametrize(
    ("cidr", "count"),
    [("10.9.0.0/31", 2), ("10.9.0.7/32", 1), ("10.9.0.0/29", 6), ("fd00::/127", 2), ("fd00::/125", 7)],
)
def test_a_network_has_as_many_addresses_as_it_has(cidr: str, count: int) -> None:
    held: set[str] = set()
    for _ in range(count):
        (address,) = hand_out(pool(cidr), held)
        assert ip_interface(address).network == ip_network(cidr)
        held.add(hold_of(address))
    assert len(held) == count
    with pytest.raises(PlanError):
        hand_out(pool(cidr), held)


def test_a_large_network_takes_no_longer() -> None:
    wide = pool("fd00::/8", "fd00::-fd7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
    assert hand_out(wide, ()) == ("fd80::/8",)


def test_holds_are_names_that_a_plan_may_have() -> None:
    assert hold_of("fd00::7/64") == "ip:fd00::7"
    assert list(addresses_in({"ip:fd00::7"})) == [ip_address("fd00::7")]


@given(st.sets(st.integers(0, 255)), st.sets(st.integers(0, 255), max_size=20))
def test_what_is_given_out_is_free(held: set[int], reserved: set[int]) -> None:
    made = pool("10.9.0.0/24", *(f"10.9.0.{number}" for number in reserved))
    free = sorted(set(range(1, 255)) - held - reserved)
    names = {hold_of(f"10.9.0.{number}") for number in held}
    if free:
        assert hand_out(made, names) == (f"10.9.0.{free[0]}/24",)
    else:
        with pytest.raises(PlanError):
            hand_out(made, names)
