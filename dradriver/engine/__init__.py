"""The engine room: pools, ledger, journal, and the work on claims."""

from dradriver.engine.cdifiles import CDIFiles
from dradriver.engine.dryrun import dry_run
from dradriver.engine.engine import Admission, Engine
from dradriver.engine.journal import Journal, JournalError, JournalView, open_journal, view_journal
from dradriver.engine.lanes import HungError, Lane
from dradriver.engine.ledger import HeldError
from dradriver.engine.metadata import MetadataFiles
from dradriver.engine.planning import Part, Planned, plan, requests
from dradriver.engine.pools import Pool, Pools, Snapshot, refresh_all
from dradriver.engine.recall import recall
from dradriver.engine.records import DeviceRecord, Record, SandboxRecord, State, StepRecord, StepState
from dradriver.engine.retry import retried
from dradriver.engine.sandboxes import Sandbox, Sandboxes

__all__ = [
    "Admission",
    "CDIFiles",
    "DeviceRecord",
    "Engine",
    "HeldError",
    "HungError",
    "Journal",
    "JournalError",
    "JournalView",
    "Lane",
    "MetadataFiles",
    "Part",
    "Planned",
    "Pool",
    "Pools",
    "Record",
    "Sandbox",
    "SandboxRecord",
    "Sandboxes",
    "Snapshot",
    "State",
    "StepRecord",
    "StepState",
    "dry_run",
    "open_journal",
    "plan",
    "recall",
    "refresh_all",
    "requests",
    "retried",
    "view_journal",
]
