"""Adapters keep the scalings found at registration. Adapters without them are refused until registered again."""

import sqlalchemy as sa
from alembic import op

revision = "r0003"
down_revision = "r0002"


def upgrade() -> None:
    op.add_column("adapters", sa.Column("scalings", sa.JSON, nullable=False, server_default="[]"))
