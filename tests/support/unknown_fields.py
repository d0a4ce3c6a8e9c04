"""Fields that clients of other servers send, sorted by what is done about them here."""

from typing import Any

ADAPTERS = (
    *("lora_path", "lora_name", "lora_request", "lora", "adapter", "adapters"),
    *("merged_adapters", "adapter_source", "lora_id", "adapter_name", "loraPath", "peft_model_id"),
)

HINTS: dict[str, Any] = {
    "user": "u",
    "store": True,
    "metadata": {"a": "b"},
    "service_tier": "flex",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"ttl": "1h"},
    "parallel_tool_calls": True,
    "verbosity": "low",
    "reasoning": {"effort": "high"},
    "reasoning_effort": "high",
    "priority": 7,
    "request_id": "mine",
}

#: Fields that vLLM, SGLang, TGI, LoRAX, llama.cpp and OpenAI know, and one that nobody does.
REFUSED: dict[str, Any] = {
    **{"tools": [{"type": "function"}], "functions": [{}], "tool_choice": "required", "function_call": {"name": "f"}},
    **{"logit_bias": {"5": 1}, "response_format": {"type": "json_object"}, "modalities": ["audio"]},
    **{"audio": {"voice": "alloy"}, "web_search_options": {"a": 1}, "prediction": {"type": "content"}},
    **{"suffix": "x", "guided_json": {"type": "object"}, "guided_regex": "a", "guided_choice": ["a"]},
    **{"guided_grammar": "g", "guided_decoding_backend": "x", "structured_outputs": {"regex": "a"}},
    **{"grammar": "root ::= x", "json_schema": {"type": "object"}, "regex": "a", "ebnf": "e"},
    **{"use_beam_search": True, "num_beams": 4, "beam_width": 4, "length_penalty": 2, "early_stopping": True},
    **{"bad_words": ["a"], "bad_words_ids": [[1]], "suppress_tokens": [1], "allowed_token_ids": [4]},
    **{"prompt_logprobs": 0, "prompt_embeds": "x", "truncate_prompt_tokens": 4, "include_stop_str_in_output": True},
    **{"return_token_ids": True, "return_tokens_as_token_ids": True, "logits_processors": ["x"]},
    **{"documents": [{"a": "b"}], "chat_template": "x", "chat_template_kwargs": {"enable_thinking": False}},
    **{"continue_final_message": True, "mirostat": 2, "mirostat_tau": 0.1, "mirostat_eta": 0.1},
    **{"xtc_probability": 0.5, "xtc_threshold": 0.5, "dry_multiplier": 0.8, "no_repeat_ngram_size": 3},
    **{"typical_p": 0.5, "tfs_z": 0.5, "top_a": 0.5, "min_length": 3, "min_new_tokens": 3, "penalty_alpha": 0.5},
    **{"skip_special_tokens": False, "spaces_between_special_tokens": False, "detokenize": False},
    **{"thinking_token_budget": 5, "vllm_xargs": {"a": 1}, "kv_transfer_params": {"a": 1}},
    **{"watermark": True, "apply_chat_template": True, "api_token": "t", "num_return_sequences": 2},
    **{
        "extra_body": {"skip_special_tokens": False},
        "sampling_params": {"regex": "", "chat_template_kwargs": {"a": ""}},
    },
    **{"session_params": {"a": 1}, "regexp": "x", "made_up": 1, "timeout": 3, "odd\r\né": 1, "x" * 999: 1},
}

#: Values that ask for nothing, of fields that are refused with others.
NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(ADAPTERS),
    **dict.fromkeys(REFUSED),
    **{"logit_bias": {}, "tools": [], "functions": [], "suffix": "", "made_up": False, "use_beam_search": False},
    **{"tool_choice": "auto", "function_call": "none", "modalities": ["text"], "skip_special_tokens": True},
    **{"response_format": {"type": "text"}, "structured_outputs": {"regex": None, "choice": [], "json": {}}},
    **{"spaces_between_special_tokens": True, "detokenize": True, "length_penalty": 1.0, "typical_p": 1},
    **{"mirostat": 0, "xtc_probability": 0.0, "no_repeat_ngram_size": 0, "num_beams": 1, "lora": "", "adapters": []},
    **{"watermark": False, "return_token_ids": False, "audio": None, "chat_template_kwargs": {}},
}
