"""`fastload doctor`: where the time of a training goes, and what the machine can do.

A script is run as it is, with its own loader; after some real batches it gets batches that are
there already, on the host and then on the device, and the differences are what loading and copying
cost (`phases`, `verdict`). Of a path, the storage and the machine are looked at (`machine`).
"""
