"""The patches on every published release that they speak of."""
