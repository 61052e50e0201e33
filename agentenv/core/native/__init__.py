"""The chat format ``native``: each model family is spoken to, and read, in the form that it was trained in."""
