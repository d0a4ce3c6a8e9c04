"""The pages for browsers: the dashboard, and the one about the API. They are served from this machine alone."""
