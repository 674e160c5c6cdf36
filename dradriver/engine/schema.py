"""The schema of the journal, as the steps that led to it. A released step never changes: a new one is added."""

Migration = tuple[str, ...]

MIGRATIONS: tuple[Migration, ...] = (
    (
        """
        CREATE TABLE claim (
            driver TEXT NOT NULL, uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
            state TEXT NOT NULL, boot TEXT NOT NULL, created REAL NOT NULL,
            devices BLOB NOT NULL, message TEXT NOT NULL,
            PRIMARY KEY (driver, uid)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE step (
            driver TEXT NOT NULL, uid TEXT NOT NULL, n INTEGER NOT NULL,
            state TEXT NOT NULL, facts BLOB NOT NULL, body BLOB NOT NULL,
            PRIMARY KEY (driver, uid, n)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE hold (
            unit TEXT NOT NULL, driver TEXT NOT NULL, uid TEXT NOT NULL, n INTEGER NOT NULL,
            amount TEXT NOT NULL,
            PRIMARY KEY (unit, driver, uid, n)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX hold_claim ON hold (driver, uid)",
        # What the holds of a unit add up to, so that a share of a unit that a thousand claims hold costs no more.
        "CREATE TABLE unit (unit TEXT PRIMARY KEY, nano TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    ),
    (
        "ALTER TABLE claim ADD COLUMN pod_claim TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE claim ADD COLUMN generation INTEGER NOT NULL DEFAULT 1",
        # What the API server was last told of the claim, as a digest; empty where it was told nothing.
        "ALTER TABLE claim ADD COLUMN told TEXT NOT NULL DEFAULT ''",
    ),
    (
        # Where a claim with steps of phase sandbox is, as JSON; null for all others.
        "ALTER TABLE claim ADD COLUMN sandbox BLOB",
        "CREATE INDEX claim_sandbox ON claim (driver, uid) WHERE sandbox IS NOT NULL",
    ),
)
"""Each entry leads from the schema version that is its index to the next one."""
