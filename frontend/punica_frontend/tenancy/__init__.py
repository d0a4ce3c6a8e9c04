"""Who may come in, as whom, and how much they use."""
