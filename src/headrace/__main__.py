"""The command line as `python -m headrace`."""

from headrace.app.cli.main import main

if __name__ == "__main__":
    main()
