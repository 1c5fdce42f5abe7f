"""Datasets that can be loaded: files, packed data, arrays, tokens and mixtures."""
