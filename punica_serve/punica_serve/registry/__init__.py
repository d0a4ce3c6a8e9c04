"""The registry: adapters, their owners, tenants, keys, grants and usage, in a SQL database.

    names.py            valid names of tenants and adapters
    records.py          the registry's contents as plain values
    snapshot.py         all of it in memory at one revision, with access rules: pure, no database
    shared.py           the adapters of the config file, which everybody may use
    registry.py         Registry: the current snapshot, and every change
    follower.py         keeps the snapshot current; handles outages of the database
    database.py         transactions with deadlines, on SQLite or PostgreSQL
    tables.py           the tables, and the meaning of a revision
    migrate.py          upgrades a database to these tables, with the steps in migrations/
    change.py           one change: a transaction, its revision, its lines in the audit log
    adapter_changes.py  registering, deleting, pinning and granting adapters, and their limits
    tenant_changes.py   tenants and keys
    files.py            who may remove files from the store, and when
    usage.py            usage by the hour
    audit_log.py        who changed what
    reading.py          rows -> records

Every frontend keeps a snapshot and follows the database by its revision, so requests are still served while the
database is down; only changes fail then. The registry knows nothing of HTTP, of GPUs, or of where adapter files are
kept.
"""
