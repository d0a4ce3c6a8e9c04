"""HTTP and websocket routes. Each module creates one router from its dependencies."""
