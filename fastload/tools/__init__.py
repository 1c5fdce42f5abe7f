"""`fastload bench`, `doctor`, `report` and `demo`, and their charts."""
