"""Planning a claim as Prepare would, and doing nothing of it."""

from dradriver.claims import Claim
from dradriver.engine.journal import JournalView
from dradriver.engine.ledger import ZERO, take
from dradriver.engine.planning import Planned, plan, requests
from dradriver.engine.pools import Pools
from dradriver.engine.records import plan_prefix
from dradriver.model import ClaimRef, Quantity


def dry_run(claim: Claim, driver: str, pools: Pools, journal: JournalView | None) -> Planned:
    """Return the plans for the driver's part of a claim, against what other claims hold now.

    What the claim itself holds, being prepared already, does not stand in its way. Raises what Prepare would report.
    """

    def others(unit: str) -> list[tuple[str, ClaimRef, Quantity]]:
        rows = journal.holders(unit) if journal else []
        return [row for row in rows if row[1].uid != claim.ref.uid]

    def taken(unit: str) -> Quantity:
        return sum((amount for _, _, amount in others(unit)), ZERO)

    parts = requests(claim, driver, pools)
    held: dict[str, dict[str, ClaimRef]] = {}
    for part in parts:
        kind = part.pool.backend.kind
        rows = journal.held(plan_prefix(kind)) if journal else {}
        held[kind] = {name: holder for name, holder in rows.items() if holder.uid != claim.ref.uid}
    planned = plan(parts, held)
    take(planned.draws, taken, others)
    return planned
