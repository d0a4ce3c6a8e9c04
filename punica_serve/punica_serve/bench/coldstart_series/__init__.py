"""Cold starts in the terms of CaraServe's evaluation (arXiv 2401.11240): series of requests, and ways to load adapters.

A series is one fixed list of arrivals; a row runs it in one way. A load in these rows is a copy from host memory.
"""
