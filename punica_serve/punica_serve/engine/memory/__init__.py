"""Memory on the host and the device, and who holds which part of it."""
