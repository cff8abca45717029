"""Celery orders that a site's agent carries out."""
