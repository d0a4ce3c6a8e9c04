"""One host: a supervisor with a link to the scheduler, and one worker process per device, which runs the engine.

It knows no placement policy. Only workers import torch, never the supervisor.
"""
