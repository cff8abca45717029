"""The pdd command."""
