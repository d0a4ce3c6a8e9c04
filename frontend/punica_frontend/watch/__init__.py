"""The cluster as callers may see it, once or as a stream of updates."""
