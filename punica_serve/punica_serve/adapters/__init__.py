"""LoRA adapters in PEFT's format: reading and checking them, without torch.

    peft_config.py      adapter_config.json -> PeftConfig; refuses what PEFT supports and we don't
    base_modules.py     the modules of a base model, by the paths that PEFT matches
    matching.py         PEFT's matching: PeftConfig x layers -> modules with rank and alpha
    pattern_process.py  the same in pattern_worker.py, a process that can be killed; pattern_job.py has their messages
    targets.py          PeftConfig x ModelConfig -> the modules that PEFT would adapt, by one of these two
    text_tensors.py     a file's tensors -> those of the text model, alone or in a model that also sees images
    base_copies.py      copies of the base's matrices in an adapter's file -> they are equal, or it is refused
    layout.py           a file's tensors and the modules' scalings -> their places
    safetensors_file.py a file's bytes -> named tensors, zero-copy
    unsupported_weights.py  formats of weights that are never read, and advice for their owners
    weights_scan.py     a weights file -> its hash; refuses values that can't be served; reads piece by piece
    adapter.py          the result: Adapter, LoraPair, HostTensor
    folder.py           a PEFT folder -> its AdapterRef at registration, the Adapter in a worker
    early_checks.py     a PEFT folder, before its weights are there -> what is already wrong
    file_reading.py     the weights of a folder -> memory; stream_hash.py hashes them meanwhile
    checksums.py        what shows damage of files whose digest was right before
    random_adapter.py   PEFT folders of random weights, for tests and benchmarks

This package knows nothing of the GPU, of pages or of requests. An adapter is applied exactly as PEFT would apply it, or
refused with an AdapterRejected that names the field or tensor.
"""
