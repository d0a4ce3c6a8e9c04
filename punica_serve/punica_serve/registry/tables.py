"""The tables. The migrations make them; a test holds the two together.

What the snapshot is made of has a ``revision``, and rows stay when what they say ends (``is_live``), so that followers
read what changed and nothing else. Whoever changes something takes the next revision first: the row of the counter is
locked until the change is committed. So changes are made one at a time, by whichever frontend, and whoever reads
revision n has seen everything up to n.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)

metadata = MetaData()

#: One row.
counter = Table(
    "counter",
    metadata,
    Column("counter_id", Integer, primary_key=True),
    Column("revision", BigInteger, nullable=False),
)

tenants = Table(
    "tenants",
    metadata,
    Column("name", Text, primary_key=True),
    Column("max_concurrent", BigInteger),
    Column("requests_per_min", BigInteger),
    Column("tokens_per_min", BigInteger),
    Column("max_adapters", BigInteger),
    Column("max_adapter_bytes", BigInteger),
    Column("suspended", Boolean, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("is_live", Boolean, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
)

keys = Table(
    "keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("secret_sha256", Text, nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("expires_s", Double),
    Column("is_live", Boolean, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
)

adapters = Table(
    "adapters",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", Text, nullable=False),
    Column("uri", Text, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("ranks", JSON, nullable=False),
    Column("source_uri", Text),
    Column("base_model", Text),
    Column("chat_template", Text),
    Column("pinned", Boolean, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("is_live", Boolean, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
    Index("ix_adapters_digest", "digest"),
)

grants = Table(
    "grants",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("to", Text, primary_key=True),
    Column("is_live", Boolean, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
)

#: What the store holds, or is about to: until its files are known to be gone.
files = Table(
    "files",
    metadata,
    Column("digest", Text, primary_key=True),
    #: When a registration of them began, or an adapter with them ended.
    Column("used_s", Double, nullable=False),
    #: Who is removing them; for so long nobody else does, and nobody registers them.
    Column("claimed_by", Text),
    Column("claimed_until_s", Double, nullable=False),
)

#: Registrations under way: for so long nobody may remove the files, though no adapter has them yet.
keeps = Table(
    "keeps",
    metadata,
    Column("keep_id", Text, primary_key=True),
    Column("digest", Text, nullable=False, index=True),
    Column("until_s", Double, nullable=False),
)

usage = Table(
    "usage",
    metadata,
    Column("hour_s", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", Text, primary_key=True),
    #: In full; empty for the base model, whose version is 0: a primary key has no nulls.
    Column("adapter", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("num_requests", BigInteger, nullable=False),
    Column("num_prompt_tokens", BigInteger, nullable=False),
    Column("num_generated_tokens", BigInteger, nullable=False),
    Column("gpu_s", Double, nullable=False),
)

#: Up to which batch each frontend's usage is counted.
usage_sources = Table(
    "usage_sources",
    metadata,
    Column("source", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("at_s", Double, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    # SQLite counts rows by itself only if their key is an INTEGER.
    Column("entry_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at_s", Double, nullable=False),
    Column("by", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("tenant", Text, nullable=False, index=True),
    Column("subject", Text, nullable=False),
    Column("detail", JSON, nullable=False),
)
