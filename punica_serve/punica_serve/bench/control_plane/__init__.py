"""`bench control-plane`: the scheduler's cost per token, and a token's latency through it.

It needs no GPU and no torch. The scheduler is the real process. ``hosts`` is one process that plays all runners, and
``frontends`` one that plays all frontends, over links like theirs. ``run.run`` is the entry point.
"""
