"""The brain: decides what should be true of the fleet."""
