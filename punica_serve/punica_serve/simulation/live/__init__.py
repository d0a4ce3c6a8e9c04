"""A simulation's arrivals against a running cluster, and both results side by side.

    cluster_check.py  checks the running cluster before the first request
    client.py      sends requests at their times, over the websockets of one or more frontends
    watch.py       polls /v1/cluster meanwhile, and makes a Timeline like the simulator's
    comparison.py  the figures of a live run and of its simulation, and their ratios

Times are simulated seconds throughout: in a cluster of simulated GPUs that run at a quarter of the speed a real second
is a quarter of one; on real GPUs they are the same.
"""
