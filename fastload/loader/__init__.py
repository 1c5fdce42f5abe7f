"""`FastLoader`, its arguments, iterators and state."""
