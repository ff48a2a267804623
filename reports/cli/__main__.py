"""``python -m reports.cli`` is `ipu-report`."""

import sys

from reports.cli import main

sys.exit(main())
