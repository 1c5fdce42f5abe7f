"""Copies batches to a device while the previous step computes."""
