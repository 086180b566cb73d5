"""How a program is built from blocks, solved, resumed, verified, and diagnosed where it has no solution."""
