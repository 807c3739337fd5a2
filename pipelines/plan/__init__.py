"""From a config to a plan: every default and every rule of a threat model is decided here, once, in pure functions.

items      the nouns of a run, and the digest that names the result of each; written: plan.json
resolve    a config and the roles that were drawn become a `Plan`
rules      each rule of a threat model
load       a config file becomes a checked config, with the points of its sweeps
checks     what does not fit together is refused; attack_checks: what attacks need
prospects  what a verdict of so many images can find
"""
