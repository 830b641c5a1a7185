"""Claim tasks, run their handlers and record how they ended."""
