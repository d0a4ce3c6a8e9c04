"""Which kernel of attention serves which rows."""

import pytest
import torch

from punica_kernels.attention_tiles import AttentionShape
from punica_kernels.gpu import attention_config
from punica_kernels.gpu.attention_config import is_for_hopper_prompts
from punica_kernels.long_prompts import LONG_PROMPT_BLOCK_M


def test_long_prompts_need_a_cache_of_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Hopper GPU; no other kernel is made for their tiles."""
    monkeypatch.setattr(attention_config, "are_long_prompts", lambda *_: True)
    shape = AttentionShape(1, 600, 2, 2, LONG_PROMPT_BLOCK_M, 1, 512)
    q, pool = torch.zeros(600, 2, 256), torch.zeros(4, 2, 16, 2, 257)
    keys, values = torch.zeros(4, 2, 16, 2, 256).unbind(1)
    assert is_for_hopper_prompts(q, keys, values, shape)
    for others in (pool[:, 0, ..., :256], values.transpose(1, 2).contiguous().transpose(1, 2)):
        with pytest.raises(ValueError, match="whole rows"):
            is_for_hopper_prompts(q, keys, others, shape)
