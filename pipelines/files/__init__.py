"""Files and folders, on a disk or an object store."""
