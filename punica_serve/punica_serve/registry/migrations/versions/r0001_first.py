"""The first tables, and the built-in tenants."""

import time

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "counter",
        sa.Column("counter_id", sa.Integer, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )
    op.execute("INSERT INTO counter (counter_id, revision) VALUES (1, 1)")
    _tenants()
    _keys()
    _adapters()
    _files()
    _accounts()


def _tenants() -> None:
    tenants = op.create_table(
        "tenants",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("max_concurrent", sa.BigInteger),
        sa.Column("requests_per_min", sa.BigInteger),
        sa.Column("tokens_per_min", sa.BigInteger),
        sa.Column("max_adapters", sa.BigInteger),
        sa.Column("max_adapter_bytes", sa.BigInteger),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("is_live", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False, index=True),
        sa.Index(
            "ix_tenants_name", "name", unique=True, sqlite_where=sa.text("is_live"), postgresql_where=sa.text("is_live")
        ),
    )
    about = {"created_s": time.time(), "is_live": True, "revision": 1}
    rows = [{"tenant_id": name, "name": name, **about} for name in ("default", "shared")]
    op.bulk_insert(tenants, rows)


def _keys() -> None:
    op.create_table(
        "keys",
        sa.Column("key_id", sa.Text, primary_key=True),
        sa.Column("secret_sha256", sa.Text, nullable=False, unique=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("expires_s", sa.Double),
        sa.Column("is_live", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False, index=True),
    )


def _adapters() -> None:
    op.create_table(
        "adapters",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("ranks", sa.JSON, nullable=False),
        sa.Column("source_uri", sa.Text),
        sa.Column("base_model", sa.Text),
        sa.Column("chat_template", sa.Text),
        sa.Column("pinned", sa.Boolean, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("is_live", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False, index=True),
        sa.Index("ix_adapters_digest", "digest"),
    )
    op.create_table(
        "grants",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("to_id", sa.Text, primary_key=True),
        sa.Column("is_live", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False, index=True),
    )


def _files() -> None:
    op.create_table(
        "files",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("used_s", sa.Double, nullable=False),
        sa.Column("claimed_by", sa.Text),
        sa.Column("claimed_until_s", sa.Double, nullable=False),
    )
    op.create_table(
        "keeps",
        sa.Column("keep_id", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False, index=True),
        sa.Column("until_s", sa.Double, nullable=False),
    )


def _accounts() -> None:
    op.create_table(
        "usage",
        sa.Column("hour_s", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("owner_id", sa.Text, primary_key=True),
        sa.Column("adapter", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("num_requests", sa.BigInteger, nullable=False),
        sa.Column("num_prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("num_generated_tokens", sa.BigInteger, nullable=False),
        sa.Column("gpu_s", sa.Double, nullable=False),
    )
    op.create_table(
        "usage_sources",
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column(
            "entry_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True
        ),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False, index=True),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
    )
