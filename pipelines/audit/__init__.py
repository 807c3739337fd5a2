"""All stages of a run, one after the other; and the self-test."""
