"""`bench control-plane`: what the scheduler costs for each token, and how long a token takes through it.

It needs no GPU and no torch. The scheduler is the real process; ``hosts`` is one process that speaks for all runners,
and ``frontends`` one for all frontends, over links like theirs. ``run.run`` is the way in.
"""
