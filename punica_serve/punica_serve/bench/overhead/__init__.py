"""`bench overhead`: what LoRA adds to a decode step of the engine. ``run.run`` is the way in."""
