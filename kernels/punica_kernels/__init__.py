"""Operators on tensors: SGMV, norm, rotary, activation, sampling. They know no requests, models or serving."""
