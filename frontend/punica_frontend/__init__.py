"""The public side of the cluster: HTTP and websocket APIs over a client of the scheduler.

A frontend needs no torch and knows no GPUs. It owns its clients' requests until they finish: it turns text into token
ids, resolves names to adapters, finds stop strings, and adds its requests again when the scheduler comes back.
"""
