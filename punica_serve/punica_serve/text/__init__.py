"""Text on its way to token ids and back. Free of torch; the GPUs' loop never sees text.

``tokenizer`` reads a model folder, ``chat_template`` its way to spell a conversation, ``detokenizer`` turns a stream of
tokens into a stream of text, ``stop_strings`` ends it, ``token_texts`` tells single tokens. They know no requests and
no sockets. ``template_worker`` is a process of its own, for the templates of strangers.
"""
