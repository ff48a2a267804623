"""``python -m ipuscope.reports.cli`` is `ipu-report`."""

import sys

from ipuscope.commands import ipu_report

sys.exit(ipu_report())
