"""What accounts of a testbed's Rucio may do, as the policies of experiments have it.

Without a policy of its own Rucio lets nobody but its administrator remove or change rules, nor add
files to most storages.
"""
