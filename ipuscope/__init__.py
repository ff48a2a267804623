"""The name under which IPUscope is installed, and its version.

`profiler` reads and writes profiles, `planner` proposes changes, `viewer` and `reports` show both,
`ipu_exec` compiles and runs models. Only the last needs PyTorch.
"""

__version__ = "0.1.0.dev0"  # the one place: pyproject.toml reads it from here

__all__ = ["__version__"]
