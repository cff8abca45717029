"""Use cases: load, decide, apply."""
