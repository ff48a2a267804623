"""Environment variables by which `ipu-run` and users set options of a script."""

from __future__ import annotations

ENGINE_OPTIONS_VARIABLE = "POPLAR_ENGINE_OPTIONS"
PLACEMENT_VARIABLE = "IPUSCOPE_PLACEMENT"  # a placement file for all options
PROPOSE_VARIABLE = "IPUSCOPE_STAGES"  # how many a model without Blocks is to be cut for
COMPILE_ONLY_VARIABLE = "IPUSCOPE_COMPILE_ONLY"  # end the script when its first model is compiled
LEVERS_VARIABLE = "IPUSCOPE_LEVERS"  # what a compile is to have otherwise than the script
COMMAND_VARIABLE = "IPUSCOPE_COMMAND"  # JSON: the words of ipu-run, for the profile
NO_SOURCE_VARIABLE = "IPUSCOPE_NO_SOURCE"  # leave the user's files out of profiles
LENIENT_VARIABLE = "IPUSCOPE_LENIENT"  # let pass what only hardware forbids
DEFAULTS_VARIABLE = "POPTORCH_DEFAULT_OPTIONS"  # JSON that all options begin from
TARGET_VARIABLE = "IPUSCOPE_TARGET"  # the machine that options without a target of their own model
