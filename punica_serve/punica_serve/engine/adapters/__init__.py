"""Adapters: loading them from disk to the device, and their memory on both sides."""
