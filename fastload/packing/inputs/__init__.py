"""Input readers: sources, columns, records, tables, images and text."""
