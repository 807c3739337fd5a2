"""The sections of a config as typed data: what to run. Reads no image.

The root and two drawers, which import one way:

    run_config     a run: its `sections` together
    paths, roles, mistakes    what every drawer needs
    sections       the models of the YAML's sections; of the root they import paths, roles, mistakes
    reading        YAML as text and values, the configs of the package, the schema; none of the others imports it
"""
