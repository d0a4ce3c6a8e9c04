"""The API of LoRAX and TGI: POST /generate, /generate_stream and / with ``parameters.adapter_id``, and GET /info.

Their shapes and status codes are kept, their errors' too. What they know and this cluster does not is refused by name.
"""
