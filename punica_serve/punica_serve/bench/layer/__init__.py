"""`bench layer`: decode steps through whole transformer layers of the engine's own model. ``run.run`` is the entry
point.
"""
