"""The HTTP and websocket routes. Each module makes one router from what it needs."""
