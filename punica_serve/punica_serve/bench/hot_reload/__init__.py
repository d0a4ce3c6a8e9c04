"""Reloads under load: five adapters are asked by the clock, while one of them is registered again and again.

versions.py   what a name may have meant when a request came, and which version its answer is of
load.py       requests when they are due, whatever has become of those before them
reloads.py    ever new versions of one adapter
cluster.py    the cluster under test, `punica-serve up` as it is
footprint.py  what the cluster takes of GPUs, hosts and disks
report.py     what is left behind
"""
