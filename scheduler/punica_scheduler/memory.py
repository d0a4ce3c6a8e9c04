"""How the scheduler's process lives with Python's collector of cycles."""

import gc

#: Objects made beyond those gone before the young are looked at; and how often each older generation is, in looks at
#: the one before it.
_THRESHOLDS = (50_000, 20, 100)


def calm_collector() -> None:
    """Has the collector stop the process less often.

    Tens of thousands of live requests are no garbage, and a look at all of them takes as long as a token may take to
    pass. The core makes no cycles; errors and closed links make a few, which can wait.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
