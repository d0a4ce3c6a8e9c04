"""Model architectures: weights of a Hugging Face folder, and the forward pass over one mixed batch of rows.

A model knows no requests: it gets token ids, positions, attention and LoRA of a batch. ``llama`` builds its layers from
the operators beside it; ``model`` is the interface to the engine.
"""
