"""What every solver plans and returns, to the bit: a change of structure must not change a number.

``python -m tests.golden write`` records the numbers of this tree on this machine, ``python -m tests.golden
check`` compares them bit for bit, and ``make test-slow`` compares them with the file in the repository within
rounding, because processors differ in their last bits. See ``cases`` for what is recorded.
"""
