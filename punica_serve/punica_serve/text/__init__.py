"""Text to token ids and back. Free of torch; the engine never sees text.

``tokenizer`` reads a model folder, ``chat_template`` renders a conversation, ``detokenizer`` turns a stream of tokens
into a stream of text, ``stop_strings`` ends it, ``token_texts`` shows single tokens. They know no requests and no
sockets. ``template_worker`` is a separate process for untrusted templates.
"""
