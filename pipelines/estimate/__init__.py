"""The cost of a run: hours, queries, bytes and money."""
