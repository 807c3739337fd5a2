"""What a run will take: hours, queries, bytes and money."""
