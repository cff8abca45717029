"""The eyes: pages for people."""
