"""A node over a stock llama.cpp server."""
