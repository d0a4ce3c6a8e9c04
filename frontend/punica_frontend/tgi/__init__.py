"""LoRAX's and TGI's API: POST /generate, /generate_stream and / with ``parameters.adapter_id``, and GET /info.

Formats, status codes and errors are theirs. Unsupported fields are refused by name.
"""
