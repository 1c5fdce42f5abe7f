"""Writes packed datasets in other formats."""
