"""The text of a PDF as its author wrote it: glyphs that are forms of letters, and lines that end within a word."""

import re
import unicodedata

_FORMS = re.compile(r"[\u2e80-\u2fdf\ufb00-\ufdff\ufe70-\ufefc]+")
"""Radicals, ligatures, and Hebrew and Arabic letters in the form of their place, which a font maps to its glyphs."""
_HYPHEN = re.compile(r"([^\W\d_])[-\u00ad\u2010]\n([^\W\d_])")
_NO_BLANK = "\u3001-\u9fff\uf900-\ufaff\uff00-\uffef"
"""Chinese and Japanese, which set no blanks between words."""
_LINE_END = re.compile(rf"(?<=[{_NO_BLANK}])\n(?=[{_NO_BLANK}])")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
"""What stands for glyphs without a letter."""


def as_written(text: str) -> str:
    """``text`` of a PDF with letters in place of their forms, and with words whole that the end of a line parts.

    Other characters stay: NFKC for all would make 102 of 10².

    A ligature of f and i becomes both letters, and "docu-" at the end of a line before "ment" becomes "document".
    """
    text = _FORMS.sub(lambda form: unicodedata.normalize("NFKC", form[0]), _CONTROLS.sub("", text))
    return _LINE_END.sub("", _HYPHEN.sub(_joined, unicodedata.normalize("NFC", text)))


def _joined(parted: re.Match[str]) -> str:
    """Both letters without the hyphen where they are small; a name such as Baden-Württemberg keeps it."""
    return parted[1] + parted[2] if (parted[1] + parted[2]).islower() else parted[0]
