"""The run folder, Ray, and the process itself: what every stage stands on."""
