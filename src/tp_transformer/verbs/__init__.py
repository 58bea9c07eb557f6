"""What `tpt` can do: each verb beside its arguments, heavy imports inside the verb."""
