"""The version, apart from the package itself, which leads to torch."""

__version__ = "0.1.0"
