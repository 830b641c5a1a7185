"""A worked example: a small shop that hands its slow work to cairnq_django."""
