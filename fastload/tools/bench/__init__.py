"""`fastload bench`: loading speed of a dataset, next to the machine's limit and DataLoader.

The programs in `benchmarks/` use these modules as well: `timing` (measures a loader), `system`
(machine, memory, page cache), `torch_side` (the same data for torch's DataLoader).
"""
