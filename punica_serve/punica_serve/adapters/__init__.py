"""LoRA adapters in PEFT's format: reading, checking and naming them, without torch.

    peft_config.py      adapter_config.json -> PeftConfig; what PEFT can express and we can't is refused
    regex_cost.py       how long a regular expression of a configuration may take
    targets.py          PeftConfig x ModelConfig -> the modules that PEFT would adapt, with rank and scaling
    safetensors_file.py a file's bytes -> named tensors, zero-copy
    adapter.py          the result: Adapter, LoraPair, HostTensor
    folder.py           a PEFT folder -> Adapter and its digest
    random_adapter.py   PEFT folders of random weights, for tests and benchmarks

Knows nothing of the GPU, of pages or of requests. An adapter is applied exactly as PEFT would, or refused with an
AdapterRejected that names the field or tensor.
"""
