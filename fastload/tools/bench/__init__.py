"""`fastload bench`: how fast a dataset loads, beside the machine's limit and torch's DataLoader.

The parts are also what the programs in `benchmarks/` are made of: `timing` (how a loader is
measured), `system` (the machine, memory, the page cache), `torch_side` (the same data as people
hand it to torch).
"""
