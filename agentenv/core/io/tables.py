"""Why a table of separated values cannot be read, in words for its owner."""

import csv


def reason_of(error: Exception) -> str:
    """What ``error`` of a table says; of a field that is too long also how that comes about and what to do."""
    if not isinstance(error, csv.Error) or "field limit" not in str(error):
        return str(error)
    return (
        f"a field has more than {csv.field_size_limit():,} characters; close the quote that stays open, or save longer "
        "texts as JSON lines"
    )


__all__ = ["reason_of"]
