"""From a config to a plan: every default and every rule of a threat model is decided here, once, in pure functions.

items      the nouns of a run; keys: the digest that names the result of each; written: plan.json
resolve    a config and the roles that were drawn become a `Plan`
encoders   which encoders there are: members, checkpoints, the shadows of an attack
roles      which images are audited, and which an attack is fitted on
views      what an attacker sends, and which outputs she reads
controls   which references an attack is compared with, and how the two groups came about
utility    on which images the use of an encoder is measured
dp_audit   which attacks guess canaries
load       a config file becomes a checked config; sweeps: the points of its sweeps
checks     what does not fit together is refused; attack_checks, gradients: what attacks need
prospects  what a verdict of so many images can find
"""
