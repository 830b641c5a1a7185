"""The only code that writes task rows: a file for each group of arrows of the state machine."""
