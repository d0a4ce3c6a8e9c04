"""The config file: its sections, the YAML reader, and the error messages."""
