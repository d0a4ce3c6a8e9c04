"""Unknown fields in OpenAI's and TGI's bodies: which are ignored, and which are refused.

``lists`` names harmless fields and values, ``lenient_body`` keeps all unknown fields, ``unknown`` finds those that
matter, and ``policy`` refuses or reports them.
"""
