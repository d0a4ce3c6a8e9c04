"""Model architectures: weights of a Hugging Face folder, and the forward pass over one mixed batch of rows.

A model knows no requests: it gets token ids, positions, an attention and the LoRA of the batch, and runs.
"""
