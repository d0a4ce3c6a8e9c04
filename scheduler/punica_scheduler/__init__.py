"""The one global view of the cluster: which GPU runs which request.

``scheduler.Scheduler`` is pure: events in, actions out, with the time as an argument. It knows no sockets, no clock, no
chance, no models. ``server`` is the shell that puts it on websockets. Page counts are all it knows of memory.
"""
