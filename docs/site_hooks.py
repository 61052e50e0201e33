"""What MkDocs does beside its configuration: it shows pages that stand elsewhere in the repository, and links to them."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/README.md": "examples.md",
}
"""Pages of the repository by the name that they have on the site."""
_START = {"README.md": "index.md"}  # the site has a start page of its own
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+\.(?:md|json|svg|png))(?=[)#])")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of ``OUTSIDE``."""
    for origin, name in OUTSIDE.items():
        text = (ROOT / origin).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turns each relative link between files of the repository into one between pages of the site."""
    here = page.file.src_uri
    origin = next((path for path, name in OUTSIDE.items() if name == here), f"docs/{here}")

    def on_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link[1]))
        name = (OUTSIDE | _START).get(target) or (
            target.removeprefix("docs/") if target.startswith("docs/") else None
        )
        return posixpath.relpath(name, posixpath.dirname(here) or ".") if name else link[1]

    return _LINK.sub(on_site, markdown)
