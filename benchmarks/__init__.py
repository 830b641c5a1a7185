"""What the package costs, measured: each module is run by itself and prints a table."""
