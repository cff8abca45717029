"""From request records and samples to windows and live ticks."""
