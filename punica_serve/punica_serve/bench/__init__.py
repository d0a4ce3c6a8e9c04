"""Benchmarks that anyone can run: each prints a table and writes JSON and a picture."""
