"""One module per kind of input: its `KIND` defines how it is detected, opened and read.

`kinds` has them all, and is imported when an input is opened: what only loads data, or writes a
shard, needs none or one of them.
"""
