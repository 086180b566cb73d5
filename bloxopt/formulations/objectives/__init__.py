"""What a policy can ask for: the base of all objectives, and one file for each kind of optimum."""
