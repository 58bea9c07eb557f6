"""Which structures attention confuses: the binding problem (section 6.2)."""
