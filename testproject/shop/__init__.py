"""The shop: views that submit tasks and the handlers that run them."""
