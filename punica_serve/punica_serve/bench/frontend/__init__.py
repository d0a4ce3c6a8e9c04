"""Measures a frontend's cost per token: a real frontend process between a simulated scheduler and clients."""
