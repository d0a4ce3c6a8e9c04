"""The registry: which adapters there are, whose they are, who may ask for them, and what was used. In SQL.

    config.py           the database's URL
    names.py            what tenants and adapters may be called
    records.py          what the registry holds, as plain values
    snapshot.py         all of it in memory at one revision, and who may use what: pure, no database
    shared.py           the adapters of the config file, which everybody may use
    registry.py         Registry: the snapshot, kept fresh, and every change
    follower.py         how it is kept fresh, and what happens while the database is away
    database.py         transactions with deadlines, on SQLite or PostgreSQL
    tables.py           the tables, and what a revision is
    migrate.py          brings a database to these tables, with the steps in migrations/
    change.py           one change: a transaction, its revision, its lines of the audit log
    adapter_changes.py  registering, deleting, pinning, granting, and the limits on them
    tenant_changes.py   tenants and keys
    files.py            who may remove files from the store, and when
    usage.py            what was used, by the hour
    audit_log.py        who changed what
    reading.py          from rows to records

Every frontend keeps a snapshot and follows the database by its revision, so that serving goes on while the database
is down: only changes fail then. Knows nothing of HTTP, of GPUs or of where adapters' files are kept.
"""
