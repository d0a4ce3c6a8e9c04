"""Usage counts the prompt tokens that were found in a KvCache."""

import sqlalchemy as sa
from alembic import op

revision = "r0006"
down_revision = "r0005"


def upgrade() -> None:
    op.add_column("usage", sa.Column("num_cached_tokens", sa.BigInteger, nullable=False, server_default="0"))
