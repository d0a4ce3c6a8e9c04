"""HTTP and websocket transport: sockets, limits, and everything below the routes."""
