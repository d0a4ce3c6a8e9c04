"""Adapters keep the base model that they were registered for. Those from before may be of any."""

import sqlalchemy as sa
from alembic import op

revision = "r0007"
down_revision = "r0006"


def upgrade() -> None:
    op.add_column("adapters", sa.Column("base_name", sa.Text))
    op.add_column("adapters", sa.Column("base_shape", sa.Text))
