"""The rules of a threat model, each decided here alone, from a config.

It imports nothing else of this room.

    encoders    which encoders there are: members, checkpoints, the shadows of an attack
    roles       which images are audited, and which an attack is fitted on
    views       what an attacker sends, and which outputs she reads
    controls    which references an attack is compared with, and how the two groups came about
    gradients   which attacks need gradients or captions, and which encoders give them
    utility     on which images the use of an encoder is measured
    dp_audit    which attacks guess canaries
"""
