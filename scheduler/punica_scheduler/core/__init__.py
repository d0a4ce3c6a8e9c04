"""The pure scheduler: events in, actions out. No input or output, no clock, no randomness."""
