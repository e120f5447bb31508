"""`python -m spanwise`: the same as the command `spanwise`."""

from spanwise.scheduler.main import main

if __name__ == "__main__":
    main()
