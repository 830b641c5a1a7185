"""`manage.py demo`: the whole example, started and shown in one terminal."""
