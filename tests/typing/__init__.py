"""Programs that are never run: type checkers have to infer what they assert, and refuse what they ignore."""
