"""bloxopt."""
