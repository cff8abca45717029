"""Samples a site's nodes and links once a second."""
