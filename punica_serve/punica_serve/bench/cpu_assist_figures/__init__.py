"""The parts of CPU assistance, each measured by itself: figures 16 to 18 of CaraServe (arXiv 2401.11240)."""
