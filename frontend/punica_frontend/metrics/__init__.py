"""What Prometheus is told: ``figures`` count, ``own`` and ``cluster`` tell them by the names in ``catalogue``.

Does no input or output.
"""
