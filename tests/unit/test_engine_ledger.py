"""The ledger refuses what another live claim holds, and says who that is."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dradriver.engine.ledger import HeldError, device_draws, take
from dradriver.engine.records import Hold
from dradriver.model import Allocated, Capacity, ClaimRef, Device, Quantity
from dradriver.slices import ApiFeatures, Pool, pool_specs
from lever import Node, config, lever_config, result


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    (node.hardware / "tank-0").touch()
    for pool in node.pools.all:
        pool.refresh()
    yield node
    node.close()


def share(water: object = None, share_id: str | None = "0a", **fields: object) -> dict[str, object]:
    if water is not None:
        fields["consumedCapacity"] = {"water": water}
    return result("tank-0") | ({"shareID": share_id} if share_id else {}) | fields


def refused(answer: object) -> str:
    assert isinstance(answer, str), answer
    return answer


def taken(node: Node) -> tuple[Quantity, Quantity]:
    """Return how much water and how many taps of the tank are held."""
    return node.journal.taken("capacity:n1/lever:tank-0:water"), node.journal.taken(
        "capacity:n1/lever:tank-0:taps"
    )


def amounts(water: str, taps: str) -> tuple[Quantity, Quantity]:
    return Quantity.parse(water), Quantity.parse(taps)


def test_an_exclusive_device_has_one_holder(node: Node) -> None:
    first, second = node.claim("a", "lever-0"), node.claim("b", "lever-1", "lever-0")
    assert not isinstance(node.prepare(first), str)
    assert refused(node.prepare(second)) == "device lever-0 is held by claim default/a (uid-a)"
    assert node.prepared == {"uid-a"}
    node.check_whole()
    assert node.unprepare(first) is None
    assert not isinstance(node.prepare(second), str)
    node.check_whole()


def test_admin_access_never_owns(node: Node) -> None:
    admin = result("lever-0", adminAccess=True)
    assert not isinstance(node.prepare(node.claim("watcher", admin)), str)
    assert not isinstance(node.prepare(node.claim("owner", "lever-0")), str)
    assert not isinstance(node.prepare(node.claim("watcher-2", admin, "lever-1")), str)
    assert "owner" in refused(node.prepare(node.claim("late", "lever-0")))
    holds = {record.ref.name: [hold.unit for hold in record.holds] for record in node.journal.records()}
    assert holds == {
        "watcher": [],
        "owner": ["device:n1/lever:lever-0"],
        "watcher-2": ["device:n1/lever:lever-1"],
    }
    assert node.unprepare(ClaimRef("uid-watcher", "default", "watcher")) is None
    assert "owner" in refused(node.prepare(node.claim("late", "lever-0")))


def test_a_device_stands_once_in_a_claim(node: Node) -> None:
    answer = refused(node.prepare(node.claim("a", "lever-0", "lever-0")))
    assert answer == "device lever-0 is allocated 2 times to this claim: it is given out once"


def test_shares_add_up_to_the_capacity(node: Node) -> None:
    five, three = node.claim("a", share("5Gi")), node.claim("b", share("3Gi", "0b"))
    assert not isinstance(node.prepare(five), str)
    assert not isinstance(node.prepare(three), str)
    assert taken(node)[0] == Quantity.parse("8Gi")
    answer = refused(node.prepare(node.claim("c", share("1", "0c"))))
    assert answer == (
        "water of device tank-0: 1 asked, 0 of 8Gi left; held by claim default/a (uid-a), default/b (uid-b)"
    )
    assert node.unprepare(three) is None
    assert refused(node.prepare(node.claim("c", share("4Gi", "0c")))) == (
        "water of device tank-0: 4Gi asked, 3Gi of 8Gi left; held by claim default/a (uid-a)"
    )
    assert not isinstance(node.prepare(node.claim("c", share("3072Mi", "0c"))), str)
    assert taken(node) == amounts("8Gi", "2")
    node.check_whole()


def test_several_shares_of_one_claim_are_added(node: Node) -> None:
    assert "9Gi asked, 8Gi of 8Gi left" in refused(
        node.prepare(node.claim("a", share("5Gi"), share("4Gi", "0b")))
    )
    assert not isinstance(node.prepare(node.claim("a", share("5Gi"), share("3Gi", "0b"))), str)
    assert taken(node)[0] == Quantity.parse("8Gi")
    assert node.unprepare(ClaimRef("uid-a", "default", "a")) is None
    assert taken(node) == amounts("0", "0")


def test_the_keys_of_consumed_capacity_may_carry_the_drivers_domain(node: Node) -> None:
    qualified = result("tank-0", shareID="0a", consumedCapacity={"lever.example.com/water": "6Gi"})
    assert not isinstance(node.prepare(node.claim("a", qualified)), str)
    assert taken(node)[0] == Quantity.parse("6Gi")
    both = result("tank-0", consumedCapacity={"lever.example.com/water": "1Gi", "water": "1Gi"})
    assert "given twice" in refused(node.prepare(node.claim("b", both)))


def test_a_share_that_names_no_amount_takes_the_policys_default(node: Node) -> None:
    assert not isinstance(node.prepare(node.claim("a", share())), str)
    assert taken(node) == amounts("1Gi", "1")


def test_a_shared_device_without_share_and_amounts_is_taken_whole(node: Node) -> None:
    assert not isinstance(node.prepare(node.claim("a", share(share_id=None))), str)
    assert taken(node) == amounts("8Gi", "4")
    answer = refused(node.prepare(node.claim("b", share("1Gi", "0b"))))
    assert answer == "device tank-0 is held by claim default/a (uid-a)"
    assert refused(node.prepare(node.claim("c", share(share_id=None)))) == answer
    assert node.unprepare(ClaimRef("uid-a", "default", "a")) is None
    assert taken(node) == amounts("0", "0")
    assert not isinstance(node.prepare(node.claim("b", share("1Gi", "0b"))), str)


@pytest.mark.parametrize("amount", ["1Gi", "0"])
def test_the_whole_of_a_shared_device_is_refused_beside_any_share(node: Node, amount: str) -> None:
    nothing = result("tank-0", shareID="0a", consumedCapacity={"water": amount, "taps": "0"})
    assert not isinstance(node.prepare(node.claim("a", nothing)), str)
    whole = node.claim("b", share(share_id=None))
    assert refused(node.prepare(whole)) == "device tank-0 is held by claim default/a (uid-a)"
    assert node.unprepare(ClaimRef("uid-a", "default", "a")) is None
    both = node.claim("c", nothing, share(share_id=None))
    assert "device tank-0 is allocated 2 times to this claim" in refused(node.prepare(both))
    assert not isinstance(node.prepare(whole), str)
    node.check_whole()


def test_a_whole_device_that_has_grown_is_still_given_out_once() -> None:
    """As memory does of which huge pages are given back, and a NUMA node whose CPUs come online."""
    tank = Allocated("r", "lever.example.com", "n1/lever", "tank-0")
    small, large = (
        Device("tank-0", shared=True, capacity={"water": Capacity(Quantity.parse(size))})
        for size in ("8Gi", "9Gi")
    )
    a_share = replace(tank, share_id="0a", consumed={"water": Quantity.parse("1Gi")})

    def beside(first: Allocated, second: Allocated) -> tuple[Hold, ...]:
        held = {draw.unit: draw.amount for draw in device_draws(0, first, small, {})}
        return take(
            device_draws(0, second, large, {}), lambda unit: held.get(unit, Quantity(0)), lambda _: []
        )

    for first, second in ((tank, a_share), (a_share, tank), (tank, tank)):
        with pytest.raises(HeldError, match="device tank-0 is"):
            beside(first, second)
    assert beside(a_share, a_share)


def test_a_shared_device_without_capacities_is_shared_or_whole() -> None:
    plain = Device("tank-0", shared=True)
    whole = Allocated("r", "lever.example.com", "n1/lever", "tank-0")
    shares = [replace(whole, share_id=f"{n}") for n in range(3)]
    draws = [draw for one in shares for draw in device_draws(0, one, plain, {})]
    assert len(take(draws, lambda _: Quantity(0), lambda _: [])) == 3
    with pytest.raises(HeldError):
        take([*draws, *device_draws(0, whole, plain, {})], lambda _: Quantity(0), lambda _: [])


def test_shares_and_wholes_are_taken_over_from_their_cdi_files(node: Node) -> None:
    (node.hardware / "tank-1").touch()
    node.pools.all[0].refresh()
    for name, one in (("a", share("1Gi")), ("b", share("2Gi", "0b")), ("c", result("tank-1"))):
        assert not isinstance(node.prepare(node.claim(name, one)), str)
    holds = {record.ref.name: record.holds for record in node.journal.records()}
    node.close()
    node.state.unlink()
    again = node.restart()
    assert {record.ref.name: record.holds for record in again.journal.records()} == holds
    assert "is held by claim" in refused(again.prepare(again.claim("d", share(share_id=None))))
    assert "is held by claim" in refused(again.prepare(again.claim("e", share("1Gi") | {"device": "tank-1"})))
    again.close()


def test_an_amount_without_a_share_id_counts(node: Node) -> None:
    bare = result("tank-0", consumedCapacity={"water": "2Gi", "taps": "1"})
    assert not isinstance(node.prepare(node.claim("a", bare)), str)
    assert taken(node) == amounts("2Gi", "1")


@pytest.mark.parametrize(
    ("amount", "reason"),
    [
        ("-1Gi", "negative"),
        (-1, "negative"),
        ("9Gi", "9Gi asked, 8Gi of 8Gi left"),
        ("1e999", "asked"),
        (10**400, "integer of 1329 bits"),
        (1e400, "consumedCapacity['water']"),
        ("lots", "consumedCapacity['water']: quantity 'lots'"),
        (True, "consumedCapacity['water']"),
        ({"a": 1}, "consumedCapacity['water']"),
        ("9" * 10_000, "consumedCapacity['water']"),
    ],
)
def test_amounts_that_cannot_be_held_are_refused(node: Node, amount: object, reason: str) -> None:
    answer = refused(node.prepare(node.claim("a", share(amount))))
    assert reason in answer
    assert len(answer) < 1000
    assert node.prepared == set()


def test_an_amount_of_zero_is_held_and_forgotten(node: Node) -> None:
    ref = node.claim("a", share("0"))
    assert not isinstance(node.prepare(ref), str)
    assert taken(node)[0] == Quantity.parse("0")
    assert node.unprepare(ref) is None


def test_devices_that_overlap_draw_on_one_counter(tmp_path: Path) -> None:
    node = Node(tmp_path, rail=2)
    (node.hardware / "lever-0-wide").touch()
    for pool in node.pools.all:
        pool.refresh()
    assert not isinstance(node.prepare(node.claim("a", "lever-0")), str)
    assert refused(node.prepare(node.claim("b", "lever-0-wide"))) == (
        "slots of rail for device lever-0-wide: 2 asked, 1 of 2 left; held by claim default/a (uid-a)"
    )
    assert not isinstance(node.prepare(node.claim("c", "lever-1")), str)
    assert "0 of 2 left" in refused(node.prepare(node.claim("d", "lever-2")))
    assert refused(node.prepare(node.claim("e", "lever-0-wide", "lever-3"))) == (
        "devices lever-0-wide and lever-3 of this claim overlap: slots of rail for device lever-0-wide: 3 asked, "
        "0 of 2 left; held by claim default/a (uid-a), default/c (uid-c)"
    )
    node.check_whole()
    node.close()


def test_devices_that_overlap_are_refused_also_where_no_counters_are_published(tmp_path: Path) -> None:
    node = Node(tmp_path, rail=2)
    (node.hardware / "lever-0-wide").touch()
    pool = node.pools.all[0]
    pool.refresh()

    def published() -> set[str]:
        named = Pool(pool.driver, "n1", pool.name)
        made = pool_specs(named, pool.snapshot.content, ApiFeatures(counters=False))
        assert "sharedCounters" not in str(made.specs)
        assert "consumesCounters" not in str(made.specs)
        return {device["name"] for spec in made.specs for device in spec.get("devices", ())}

    assert published() == {"lever-0-wide"}
    assert not isinstance(node.prepare(node.claim("a", "lever-0-wide")), str)
    (node.hardware / "lever-0-wide").unlink()
    pool.refresh()
    assert published() == {"lever-0", "lever-1"}, "what the claim holds is not there any more"
    assert refused(node.prepare(node.claim("b", "lever-0"))) == (
        "slots of rail for device lever-0: 1 asked, 0 of 2 left; held by claim default/a (uid-a)"
    )
    node.close()


def test_things_below_the_devices_are_held_by_name(node: Node) -> None:
    cogs = [config(lever_config(cogs=["left", "right"]))]
    assert not isinstance(node.prepare(node.claim("a", "lever-0", config=cogs)), str)
    assert set(node.journal.held("plan:lever:")) == {"left", "right"}
    late = node.claim("b", "lever-1", config=[config(lever_config(cogs=["right"]))])
    assert refused(node.prepare(late)) == "lever right is held by claim default/a (uid-a)"
    assert node.unprepare(ClaimRef("uid-a", "default", "a")) is None
    assert not isinstance(node.prepare(late), str)


def test_a_plan_that_holds_something_for_admin_access_is_a_fault_of_the_backend(node: Node) -> None:
    admin = result("lever-0", adminAccess=True)
    answer = node.prepare(node.claim("a", admin, config=[config(lever_config(cogs=["left"]))]))
    assert "admin access" in refused(answer)


def test_a_refusal_names_a_few_of_many_holders(node: Node) -> None:
    for n in range(4):
        share_of_one = result("tank-0", shareID=f"{n}", consumedCapacity={"water": "1Gi", "taps": "1"})
        assert not isinstance(node.prepare(node.claim(f"c{n}", share_of_one)), str)
    answer = refused(node.prepare(node.claim("late", share("1Gi"))))
    assert answer.endswith("default/c0 (uid-c0), default/c1 (uid-c1), default/c2 (uid-c2) and 1 more")


def test_of_many_claims_that_race_for_one_device_one_wins(node: Node) -> None:
    refs = [node.claim(f"c{n}", "lever-0") for n in range(16)]
    start = threading.Barrier(len(refs))
    answers: dict[str, object] = {}

    def race(ref: ClaimRef) -> None:
        start.wait()
        answers[ref.uid] = node.prepare(ref)

    threads = [threading.Thread(target=race, args=(ref,)) for ref in refs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [uid for uid, answer in answers.items() if not isinstance(answer, str)]
    assert len(winners) == 1
    losers = {answer for answer in answers.values() if isinstance(answer, str)}
    (winner,) = node.journal.records()
    assert losers == {f"device lever-0 is held by claim {winner.ref}"}
    node.check_whole()
