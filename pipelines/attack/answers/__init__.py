"""The answers of scores.

It imports of this room `fit`, `reference`, `results` and `scores`.

    judge       the result of an attack, completed and written
    evidence    the candidates as a set; candidates: each by itself
    canaries    those of the audit of differential privacy; memorised: by the shadows of an attack
"""
