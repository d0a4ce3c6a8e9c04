"""State that real and simulated workers keep alike, between the scheduler's commands and their reports."""
