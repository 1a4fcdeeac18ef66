"""`python -m vri` runs the command `vri`."""

import sys

try:
    from vri.cli import main

    sys.exit(main())
except KeyboardInterrupt:  # before anything has begun
    sys.exit(130)
