"""Runs the jobs that write shards: in this host's processes or an executor's."""
