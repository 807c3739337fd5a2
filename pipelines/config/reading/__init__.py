"""From a file to a run.

It imports the sections and the root of this room; neither imports it.

    load        a file, those that it extends, overrides and sweeps; yaml_text: its text as plain values
    shipped     the configs that come with the package, by their names
    sweeps      the points of a sweep; fields: fields by their dotted names
    schema      the JSON Schema of a file, for editors
"""
