"""``python -m ipuscope.reports.cli`` is `ipu-report`."""

import sys

from ipuscope.reports.cli import main

sys.exit(main())
