"""What to run: the sections of a config, their checks and shorthands. Reads no image.

run_config     a run: its `sections` together; shape, published, gradients: what follows from several of them
checks         a whole run; attack_checks: its attacks; demands: the queries it needs; prospects: what it can find
names          names, paths, roles, and mistakes in one line: what every drawer needs
sections       the models of the YAML's sections; of the files above they import names, paths, roles, mistakes
reading        from a file to a run; it imports all others, and none of them imports it
"""
