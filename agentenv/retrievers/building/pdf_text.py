"""Restores the text of a PDF as its author wrote it: normalises letter forms, and joins words split at line ends."""

import re
import unicodedata

_FORMS = re.compile(r"[\u2e80-\u2fdf\ufb00-\ufdff\ufe70-\ufefc]+")
"""Matches radicals, ligatures, and positional forms of Hebrew and Arabic letters, which fonts map to glyphs."""
_HYPHEN = re.compile(r"([^\W\d_])[-\u00ad\u2010]\n([^\W\d_])")
_NO_BLANK = "\u3001-\u9fff\uf900-\ufaff\uff00-\uffef"
"""Chinese and Japanese characters, which are written without blanks between words."""
_LINE_END = re.compile(rf"(?<=[{_NO_BLANK}])\n(?=[{_NO_BLANK}])")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
"""Matches characters that represent glyphs without a letter."""


def as_written(text: str) -> str:
    """Replaces letter forms in the ``text`` of a PDF by plain letters, and joins words that a line end splits.

    Other characters are unchanged, because NFKC for the whole text would turn 10² into 102.

    A ligature of f and i becomes both letters, and "docu-" at the end of a line before "ment" becomes "document".
    """
    text = _FORMS.sub(lambda form: unicodedata.normalize("NFKC", form[0]), _CONTROLS.sub("", text))
    return _LINE_END.sub("", _HYPHEN.sub(_joined, unicodedata.normalize("NFC", text)))


def _joined(parted: re.Match[str]) -> str:
    """Joins both letters without the hyphen if they are lower case; a name such as Baden-Württemberg keeps it."""
    return parted[1] + parted[2] if (parted[1] + parted[2]).islower() else parted[0]
