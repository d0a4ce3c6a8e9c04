"""A client's request: planned, admitted, streamed, logged and traced."""
