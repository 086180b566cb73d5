"""Objectives of published systems that are more than a composition of general blocks: one file, or a few, a system."""
