"""Pipeline schedules as lists of actions: generated, read, simulated and compared."""
