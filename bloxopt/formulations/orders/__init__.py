"""What queues are sorted by: one file an order key, or a family of them."""
