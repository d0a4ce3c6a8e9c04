"""One host: a supervisor, which speaks with the scheduler, over one worker process per device, which runs the engine.

It knows no placement policy. The supervisor never imports torch; whatever does is imported by the worker alone.
"""
