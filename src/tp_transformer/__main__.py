"""`python -m tp_transformer` is `tpt`."""

from tp_transformer.cli import main

if __name__ == "__main__":
    main()
