"""Runs the jobs that write shards: in processes of this host or on an executor."""
