"""``python -m agentenv`` is the command ``agentenv`` of that Python."""

import sys

from agentenv.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
