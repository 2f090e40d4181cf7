"""The composition root: the only package that knows all concrete classes. One process has one `App`."""
