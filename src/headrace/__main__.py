"""The command line as `python -m headrace`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # `python -m` puts the folder where it runs first, where a user's own queue.py hides Python's

from headrace.app.cli.main import main

if __name__ == "__main__":
    main()
