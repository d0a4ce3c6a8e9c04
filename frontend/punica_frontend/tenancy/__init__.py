"""Authentication of callers, and what tenants use."""
