"""Tenants can be suspended."""

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"


def upgrade() -> None:
    op.add_column("tenants", sa.Column("suspended", sa.Boolean, nullable=False, server_default=sa.false()))
