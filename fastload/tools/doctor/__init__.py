"""`fastload doctor`: where the time of a training goes, and the speed of the machine.

A script runs unchanged, with its own loader. After some real batches it receives cached batches,
first on the host, then on the device; the differences in step time are the costs of loading and
copying (`phases`, `verdict`). For a path, storage and machine are examined (`data`, `machine`).
"""
