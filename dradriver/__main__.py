"""`python -m dradriver`: the command line."""

from dradriver.cli import main

if __name__ == "__main__":
    main()
