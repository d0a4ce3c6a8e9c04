"""OpenAI's API: clients find the base model and every adapter under ``model``.

Bodies are checked in ``*_body``, turned into plans by ``request_planner``, and answered in the formats of
``*_answers``. Unknown fields are refused by name (``fields``).
"""
