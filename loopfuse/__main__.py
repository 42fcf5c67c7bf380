"""`python -m loopfuse`."""

import sys

from loopfuse.cli import main

sys.exit(main())
