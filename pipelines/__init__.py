"""Runs an audit on Ray; every stage can be stopped and resumed. The mathematics is in `mi_core`.

A room imports itself and the rooms that stand before it in this list, never a later one:

    errors     mistakes of users, as one line; console: what the user sees meanwhile
    files      files and folders, on a disk or an object store; locks
    config     what to run: the sections of the YAML file as typed data, and their shorthands; reads no image
    plan       what is to be done: `items` are the nouns of a run; `rules` are those of a threat model; `resolve`
               applies each once, and decides what depends on several sections; `checks` refuses what does not fit
    run        the run folder, the Ray session, the points of sweeps, processes and signals
    data       from sources to samples with roles
    encoders   encoders in a run folder: stored, adopted from elsewhere, or asked behind an API
    pretrain   train target and shadow encoders; fit defenses
    extract    query encoders for membership features, shard by shard
    attack     fit attacks, score the audited samples, run the controls
    tune       search the parameters of a defense
    report     from results to report.json, report.html and the terminal; two runs side by side; statements
    lots       releases in which chance decides what is published, and claims of their use
    estimate   what a run will take: hours, queries, bytes and money
    audit      all stages, one after the other; the self-test
    jobs       the same run as a job of a Ray cluster
    cli        the command line

The way of an image: ``data.scan`` reads and hashes it, ``data.draw`` gives it a role, ``plan.resolve`` says which
queries it is shown in, ``extract.division`` groups them and streams it, ``extract.actor`` queries the encoders and
writes the columns, ``attack.fit`` turns them into a score, ``report.verdict`` into a verdict.
"""
