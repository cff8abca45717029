"""Many virtual nodes in one process, with teeth."""
