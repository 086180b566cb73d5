"""Where allocations meet machines: assignments and the backend protocol that simulated and live nodes share."""
