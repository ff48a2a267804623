"""What the runner and the plugin, which it must not import, both say."""

PLUGIN = "tools.poptorch_suite.plugin"
OUTCOMES_VARIABLE = "IPUSCOPE_OUTCOMES"
