"""Tenants have latency promises, and usage counts those kept and broken."""

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"

_PROMISES = ("first_token_kept", "first_token_broken", "time_per_token_kept", "time_per_token_broken")


def upgrade() -> None:
    for name in ("slo_first_token_s", "slo_time_per_token_s"):
        op.add_column("tenants", sa.Column(name, sa.Double))
    for name in _PROMISES:
        op.add_column("usage", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
