"""What a frontend costs for each token: a real frontend process between a played scheduler and a process of clients."""
