"""Building an index, importing one that was built elsewhere, and planning which one fits."""
