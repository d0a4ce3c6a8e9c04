"""The performance model: how long a step will take, from times that were measured once.

``profile`` is the file, ``step_time`` the time of one step, ``step_columns`` that of many GPUs' steps at once. The
scheduler and the simulator read the same file through the same model.
"""
