"""A simulation's arrivals against a running cluster, and what came of both side by side.

    found.py       the running cluster before the first request: is it one, and the right one
    client.py      sends the requests when they are due, over the websockets of one or more frontends
    watch.py       looks at /v1/cluster while they run, and makes the same Timeline of it as the simulator makes
    comparison.py  the figures of a live run and of its simulation, and their ratios

Times are simulated seconds throughout: in a cluster of simulated GPUs that run at a quarter of the speed a real second
is a quarter of one; on real GPUs they are the same.
"""
