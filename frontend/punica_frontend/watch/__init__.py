"""The cluster as callers may see it, once or again and again."""
