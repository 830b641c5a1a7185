"""What machines ask of the queue: whether it is well, and its figures. Nothing here writes."""
