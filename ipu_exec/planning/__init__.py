"""The planner's engine: capturing a model, compiling it for costs, and saying what was found."""
