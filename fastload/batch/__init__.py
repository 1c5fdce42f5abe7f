"""What a batch is made of: transforms, decoding, collation, and the fields of a device."""
