"""WS /v1/generate/stream: many requests on one socket."""
