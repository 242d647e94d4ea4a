"""`python -m unseen`, the same as `unseen`."""

from unseen.cli import main

if __name__ == "__main__":
    main()
