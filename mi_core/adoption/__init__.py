"""Encoders from elsewhere: by name, from a file or a folder.

It imports `mi_core.encoders`, which does not import it.

    foreign          adopts an encoder: builds, fills and checks it; builders: fresh networks of every kind
    published        names, looked up without building, and the publishers' own preprocessing
    weight_sources   files, folders (model_folder) and the Hub; layouts: which keys of a file are what
    code             TorchScript and Python callables; transformers_models: models of the package transformers
    soundness        checks of any encoder before it is used
"""
