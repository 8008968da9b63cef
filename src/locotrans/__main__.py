"""`python -m locotrans` is the `locotrans` program; torchrun starts it as a module."""

from locotrans.cli import main

if __name__ == "__main__":
    main()
