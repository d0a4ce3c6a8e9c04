"""The tables. The migrations create them; a test keeps the two consistent.

Tables that make up the snapshot have a ``revision``, and their rows stay after they end (``is_live``), so that
followers read only what changed. Every change first takes the next revision, which locks the counter's row until the
commit. So changes are made one at a time across all frontends, and a reader of revision n has seen everything up to n.

A tenant's name may be reused after its deletion, its id never. So all other tables refer to tenants by id, and the rows
of deleted tenants stay to keep their names.
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
    text,
)

metadata = MetaData()

#: Has a single row.
counter = Table(
    "counter",
    metadata,
    Column("counter_id", Integer, primary_key=True),
    Column("revision", BigInteger, nullable=False),
)

tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("max_concurrent", BigInteger),
    Column("requests_per_min", BigInteger),
    Column("tokens_per_min", BigInteger),
    Column("max_adapters", BigInteger),
    Column("max_adapter_bytes", BigInteger),
    Column("suspended", Boolean, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("is_live", Boolean, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
    Column("slo_first_token_s", Double),
    Column("slo_time_per_token_s", Double),
    Index("ix_tenants_name", "name", unique=True, sqlite_where=text("is_live"), postgresql_where=text("is_live")),
)

keys = Table(
    "keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("secret_sha256", Text, nullable=False, unique=True),
    Column("tenant_id", Text, nullable=False),
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
    Column("tenant_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", Text, nullable=False),
    Column("uri", Text, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("ranks", JSON, nullable=False),
    Column("scalings", JSON, nullable=False),
    Column("invocation", JSON, nullable=False),
    Column("source_uri", Text),
    Column("base_model", Text),
    # The service's base model at the registration; null for an adapter of an older version of punica-serve.
    Column("base_name", Text),
    Column("base_shape", Text),
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
    Column("tenant_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("to_id", Text, primary_key=True),
    Column("is_live", Boolean, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
)

#: Digests that the store holds or is about to hold, until their files are known to be gone.
files = Table(
    "files",
    metadata,
    Column("digest", Text, primary_key=True),
    #: When a registration of them began, or an adapter with them ended.
    Column("used_s", Double, nullable=False),
    #: The process that is removing them; meanwhile nobody else removes or registers them.
    Column("claimed_by", Text),
    Column("claimed_until_s", Double, nullable=False),
)

#: Registrations in progress: their files may not be removed, though no adapter has them yet.
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
    Column("tenant_id", Text, primary_key=True),
    #: The adapter's owner. Empty for the base model, as is the name, and its version is 0: primary keys can't be null.
    Column("owner_id", Text, primary_key=True),
    #: The adapter's full name.
    Column("adapter", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("num_requests", BigInteger, nullable=False),
    Column("num_prompt_tokens", BigInteger, nullable=False),
    #: Prompt tokens that were found in a KvCache.
    Column("num_cached_tokens", BigInteger, nullable=False, server_default="0"),
    Column("num_generated_tokens", BigInteger, nullable=False),
    Column("gpu_s", Double, nullable=False),
    # Promises of the requests that ended.
    Column("first_token_kept", BigInteger, nullable=False, server_default="0"),
    Column("first_token_broken", BigInteger, nullable=False, server_default="0"),
    Column("time_per_token_kept", BigInteger, nullable=False, server_default="0"),
    Column("time_per_token_broken", BigInteger, nullable=False, server_default="0"),
)

#: The last batch of usage counted from each frontend.
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
    # SQLite numbers rows automatically only if the key's type is INTEGER.
    Column("entry_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at_s", Double, nullable=False),
    Column("by", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("tenant_id", Text, nullable=False, index=True),
    Column("subject", Text, nullable=False),
    Column("detail", JSON, nullable=False),
)
