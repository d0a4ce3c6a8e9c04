"""A Llama model's weights, checked against its config."""

from dataclasses import dataclass

import torch
from torch import Tensor

from punica_serve.errors import ModelRejected
from punica_serve.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are [out, in], as linear() takes them."""

    input_norm: Tensor
    qkv: Tensor
    o: Tensor
    post_attention_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    #: [vocab, hidden]; the embedding itself where they are tied.
    lm_head: Tensor


def gather_weights(tensors: dict[str, Tensor], config: ModelConfig) -> LlamaWeights:
    """Checks every tensor of a checkpoint against the config and stacks what is stacked. Empties ``tensors``."""

    def take(name: str, *shape: int) -> Tensor:
        tensor = tensors.pop(name, None)
        if tensor is None:
            raise ModelRejected(f"the weights lack tensor `{name}`", param=name)
        if tuple(tensor.shape) != shape:
            raise ModelRejected(
                f"tensor `{name}` has shape {tuple(tensor.shape)}, config.json says {shape}", param=name
            )
        return tensor

    def stack(prefix: str, *modules: str) -> Tensor:
        return torch.cat([take(f"{prefix}{module}.weight", *config.linear_shapes[module]) for module in modules])

    def layer(number: int) -> LayerWeights:
        prefix = f"model.layers.{number}."
        return LayerWeights(
            input_norm=take(f"{prefix}input_layernorm.weight", config.hidden_size),
            qkv=stack(f"{prefix}self_attn.", "q_proj", "k_proj", "v_proj"),
            o=stack(f"{prefix}self_attn.", "o_proj"),
            post_attention_norm=take(f"{prefix}post_attention_layernorm.weight", config.hidden_size),
            gate_up=stack(f"{prefix}mlp.", "gate_proj", "up_proj"),
            down=stack(f"{prefix}mlp.", "down_proj"),
        )

    embedding_weight = take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers = tuple(layer(number) for number in range(config.num_hidden_layers))
    norm = take("model.norm.weight", config.hidden_size)
    # A checkpoint may ship a head of its own although its config ties them: transformers, too, then unties them.
    if config.tie_word_embeddings and "lm_head.weight" not in tensors:
        lm_head = embedding_weight
    else:
        lm_head = take("lm_head.weight", config.vocab_size, config.hidden_size)
    _refuse_leftovers(tensors)
    return LlamaWeights(embedding_weight, layers, norm, lm_head)


def _refuse_leftovers(tensors: dict[str, Tensor]) -> None:
    """A tensor that nothing reads means that the checkpoint is not the model that config.json describes."""
    leftovers = sorted(name for name in tensors if not name.endswith("rotary_emb.inv_freq"))
    if leftovers:
        raise ModelRejected(f"the weights hold tensor `{leftovers[0]}`, which no Llama layer reads", param=leftovers[0])
