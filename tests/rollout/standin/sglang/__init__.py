"""Stands where SGLang stands in a release, so that rollouts can be tried in seconds instead of minutes."""
