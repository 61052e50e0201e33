"""The source that a jail's interpreter runs: a few lines on its command line, the rest through its control channel."""

from pathlib import Path
from typing import Any

from agentenv.sandbox.jail import frames

JAIL = Path(__file__).parent / "jail"
PACKAGE = "agentenv.sandbox.jail"

BOOT = """\
import importlib.abc, importlib.util, json, os, struct, sys
def read(size):
    parts = b""
    while len(parts) < size:
        part = os.read(0, size - len(parts))
        if not part:
            os._exit(0)
        parts += part
    return parts
given = json.loads(read(struct.unpack(">I", read(4))[0]))
class Given(importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in given["modules"]:
            return importlib.util.spec_from_loader(name, self, is_package=name in given["packages"])
    def exec_module(self, module):
        exec(compile(given["modules"][module.__name__], module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Given())
from agentenv.sandbox.jail.zygote import boot
boot(given["setup"])
"""


def boot_message(setup: dict[str, Any]) -> bytes:
    """Returns the first bytes on a jail's channel: the modules of this package, and the settings of the zygote."""
    packages = [PACKAGE.rsplit(".", cut)[0] for cut in (2, 1)] + [PACKAGE]
    modules = dict.fromkeys(packages, "")
    for path in sorted(JAIL.glob("*.py")):
        if path.stem != "__init__":
            modules[f"{PACKAGE}.{path.stem}"] = path.read_text(encoding="utf-8")
    body = frames.encode({"modules": modules, "packages": packages, "setup": setup})
    return frames.LENGTH.pack(len(body)) + body
