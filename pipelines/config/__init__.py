"""The sections of a config as typed data: what to run. Reads no image.

The root and two drawers, which import one way:

    run_config     a run: its `sections` together; shape, published: what is spelled out before
    names          names, paths, roles, and mistakes in one line: what every drawer needs
    sections       the models of the YAML's sections; of the files above they import names, paths, roles, mistakes
    reading        YAML as text and values, the configs of the package, the schema; none of the others imports it
"""
