"""A model's budget for the prefills of a step, and the cost of a prompt's token."""

from collections import Counter

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.prefill_chunks import ChunkCosts, PrefillBudget


def chunk_costs_of(model: ModelConfig) -> ChunkCosts:
    """Counts two operations for each weight, and four for each element of a head and token of context."""
    weights = model.num_hidden_layers * sum(out * into for out, into in model.linear_shapes.values())
    of_layer = 4.0 * model.num_attention_heads * model.head_dim
    layers = Counter(layer.window for layer in model.spec.layers)
    return ChunkCosts(2.0 * weights, tuple((window, count * of_layer) for window, count in layers.items()))


def prefill_budget_of(model: ModelConfig, tokens: int) -> PrefillBudget:
    """So many prompt tokens a step, and fewer where the model's attention makes them dear."""
    return PrefillBudget(tokens, chunk_costs_of(model))
