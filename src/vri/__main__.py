"""`python -m vri` runs the command `vri`."""

import sys

from vri.cli import main

sys.exit(main())
