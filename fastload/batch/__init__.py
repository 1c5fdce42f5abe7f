"""Batches: transforms, decoding, collation, and the fields that a device converts."""
