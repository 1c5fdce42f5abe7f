"""Which samples come in which order: samplers, ranks, positions and states."""
