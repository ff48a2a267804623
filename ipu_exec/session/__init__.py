"""A call of the model: compiling when it is due, running, profiles, saved executables."""
