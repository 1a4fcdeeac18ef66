"""`python -m vri` is the command `vri`."""

import sys

from vri.cli import main

sys.exit(main())
