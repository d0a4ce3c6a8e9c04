"""OpenAI's API, so that its clients find the base model and every adapter under ``model``.

Bodies are checked in ``*_body``, turned into plans in ``planning``, and answered in the shapes of ``*_answers``. What
OpenAI or vLLM know and this cluster does not is refused by name (``unsupported``); other unknown fields are ignored.
"""
