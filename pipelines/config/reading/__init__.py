"""From a file to plain values.

It imports the sections and the root of this room; neither imports it.

    yaml_text   the text of a file as plain values; the configs that come with the package, by their names
    fields      fields by their dotted names
    schema      the JSON Schema of a file, for editors
"""
