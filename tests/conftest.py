"""Settings for all tests: property tests draw the same examples in every run, and no example is timed."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("bloxopt", deadline=None, derandomize=True)
settings.load_profile("bloxopt")
