"""Pages for browsers: the dashboard and the API page. Everything is served from this host."""
