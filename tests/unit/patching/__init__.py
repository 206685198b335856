"""Patches: on small packages made for the purpose. ``tests/patches`` has the published releases."""
