"""The hands: everything that runs at a site."""
