"""`bench overhead`: the cost of LoRA in a decode step of the engine. ``run.run`` is the entry point."""
