"""Names shared by the runner and the plugin, which the runner must not import."""

PLUGIN = "tools.poptorch_suite.plugin"
OUTCOMES_VARIABLE = "IPUSCOPE_OUTCOMES"
