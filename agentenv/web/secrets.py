"""What a server said, without the keys that it may have repeated: for errors, logs and records."""

import os
import re
from collections.abc import Sequence

_SECRET = re.compile("KEY|TOKEN|SECRET")
_SECRET_CHARS = 8  # a shorter value is a setting


def without_keys(text: str, always: Sequence[str] = ()) -> str:
    """``text`` without the value of any environment variable that holds a secret by its name.

    Args:
        text: What somebody else wrote.
        always: Variables whose values are taken out however short they are.
    """
    for name, value in os.environ.items():
        # Without the white space around it, because a key is sent without it and comes back so.
        secret = value.strip()
        if secret and (name in always or (_SECRET.search(name) and len(secret) >= _SECRET_CHARS)):
            text = text.replace(secret, "***")
    return text
