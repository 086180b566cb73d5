"""``python -m bloxopt.cli``."""

from bloxopt.cli import main

if __name__ == "__main__":
    main()
