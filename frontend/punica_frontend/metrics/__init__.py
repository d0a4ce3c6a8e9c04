"""Metrics for Prometheus: ``metrics`` counts, ``own`` and ``cluster`` print under the names in ``catalogue``.

Does no input or output.
"""
