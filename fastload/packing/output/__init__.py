"""Writes shards, their journal and the manifest."""
