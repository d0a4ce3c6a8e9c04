"""The cluster over time: events, rolling statistics and history."""
