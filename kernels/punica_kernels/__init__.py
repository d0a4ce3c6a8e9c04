"""Operators on tensors: SGMV, norm, rotary, activation, sampling. Knows nothing of requests, models or serving."""
