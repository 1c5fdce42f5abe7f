"""What inputs are read through: sources of parts, records, tables, images and texts."""
