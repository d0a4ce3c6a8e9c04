"""A cluster that breaks on purpose, under load, and is watched by clients who know every token that must come."""
