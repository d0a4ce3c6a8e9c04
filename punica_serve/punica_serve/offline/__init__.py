"""Offline inference: one engine in this process, with its tokenizer and its adapters by name. No servers."""
