"""What all rooms of the engine stand on."""
