"""Reloads under load: requests for five adapters arrive by the clock, while one adapter is registered again and again.

versions.py   the versions that a name may have meant during a request, and the one that its answer is from
load.py       requests at their due times, regardless of earlier ones
reloads.py    ever new versions of one adapter
footprint.py  the cluster's use of GPUs, hosts and disks
report.py     the report
"""
