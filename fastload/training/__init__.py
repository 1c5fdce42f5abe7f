"""The training step, its checkpoints, logs and loops."""
