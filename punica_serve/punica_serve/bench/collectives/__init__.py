"""`bench collectives`: how long ranks take to add up a tensor, by its size and by the way in which they do it."""
