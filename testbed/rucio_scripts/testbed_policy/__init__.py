"""Permission policy of a testbed's Rucio, similar to those of experiments.

By default Rucio lets only its administrator remove or change rules and add files to most storages.
"""
