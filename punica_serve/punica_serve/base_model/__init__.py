"""The base model on disk: its shape, its files, and how LoRA weights are laid out for it. Free of torch."""
