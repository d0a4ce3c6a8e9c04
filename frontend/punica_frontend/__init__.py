"""The public face: HTTP and websocket APIs, over a client of the scheduler. Free of torch; knows no GPUs.

A frontend owns its clients' requests until they finish: it turns text into token ids, resolves names to adapters, finds
stop strings, and adds its requests again when the scheduler comes back.
"""
